#!/usr/bin/env bash
# The runs behind docs/results/mnist.md, in order. Each can be interrupted: run this again and it continues.
#   ATLAS_DATA=... scripts/mnist_runs.sh written | quick | larger | embedded
set -euo pipefail
out=${OUT:-runs/mnist}

run() { # NAME PRESET [--set ...]
  local folder=$out/$1
  if [ -e "$folder/config.json" ]; then atlas train --resume "$folder"; else atlas train "$2" --out "$folder" "${@:3}"; fi
  [ -e "$folder/scores.json" ] || python -m scripts.results attack "$folder"
  python -m scripts.results run "$folder"
}

written() { # the paper's settings on the small CNN; what it leaves open as in docs/explanation/decisions.md
  run written-atlas-1 mnist-small-atlas-1
  run written-adv-1 mnist-small-adv-1
  run written-atlas-1-seed1 mnist-small-atlas-1 --seed 1
}

quick() { # a larger learning rate over fewer epochs, and a stronger validation attack
  run quick-adv-1 mnist-quick-adv-1
  run quick-trades-1 mnist-quick-trades-1
  run quick-atlas-1 mnist-quick-atlas-1
}

larger() { # the quick settings on the larger network, in bfloat16 where the processor knows it
  run quick-atlas-1-cnn mnist-quick-atlas-1 --set model=cnn --precision auto
  run quick-adv-1-cnn mnist-quick-adv-1 --set model=cnn --precision auto
}

embedded() { # one change at a time to the demo's ATLAS and ADV, on the embedded data
  local m
  for m in atlas adv; do
    run "mini-$m" "demo-$m-1"
    run "mini-$m-clipped" "demo-$m-1" --set method.attack.clip_start=true
    run "mini-$m-noramp" "demo-$m-1" --set training.schedule.ramp_epochs=0
  done
  run mini-atlas-adam demo-atlas-1 --set training.optimizer.kind=adam --set training.optimizer.lr=2e-3
  run mini-atlas-alpha0 demo-atlas-1 --set method.alpha=0
  run mini-atlas-alpha1e-3 demo-atlas-1 --set method.alpha=1e-3
}

case ${1:-} in
  written | quick | larger | embedded) "$1" ;;
  *) sed -n '2,3p' "$0" >&2 && exit 2 ;;
esac
