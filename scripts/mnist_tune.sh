#!/usr/bin/env bash
# The same small search for every method of Table 1 on MNIST, by validation images alone: 12 points of optimiser,
# learning rate, ramp and the method's own weights, on 20,000 images and 10 epochs of the small CNN, scored by Un-T.
#   ATLAS_DATA=... scripts/mnist_tune.sh [METHOD...]        such as atlas-1; without one, all seven
# What is interrupted continues when it is started again; two of it share the work.
set -euo pipefail
out=${OUT:-runs/tune}
methods=("$@")
[ $# -gt 0 ] || methods=(jac adv-1 trades-1 atlas-1 adv-20 trades-20 atlas-20)

for method in "${methods[@]}"; do
  space=(
    --choice training.optimizer.kind=sgd,adam
    --range training.optimizer.lr=1e-3..0.3:log
    --range training.schedule.ramp_epochs=0..6
  )
  case $method in
    jac) space+=(--range method.alpha=5e-3..50:log) ;;
    # From next to x its twenty steps of 0.01 never see the outer third of the ball: it starts where the others do.
    trades-20) space+=(--range method.beta=0.1..10:log --set method.attack.start_at=uniform) ;;
    trades-*) space+=(--range method.beta=0.1..10:log) ;;
    atlas-*) space+=(--range method.alpha=1e-7..1e-3:log --range method.beta=0.03..3:log) ;;
  esac
  atlas sweep "mnist-quick-$method" --search 12 "${space[@]}" --score-attack "Un-T 3x50" --out "$out/$method" \
    --set data=mnist:20000 --set training.schedule.epochs=10
done
