#!/bin/bash
# Robust training on 2 machines with 4 GPUs each, and the evaluation after it:
#   sbatch examples/slurm.sh cifar10-atlas-1 /shared/runs/mine
# The folder has to be on a disk that all machines see. The job is queued again when a machine is lost or its
# time is over, and the same command goes on from the last state.
#SBATCH --job-name=atlas
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
set -euo pipefail

preset=${1:?usage: sbatch slurm.sh PRESET FOLDER}
folder=${2:?usage: sbatch slurm.sh PRESET FOLDER}
meeting_point=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$meeting_point:29400" --rdzv-id "$SLURM_JOB_ID" \
    -m atlas train "$preset" --out "$folder" || true
if [ -e "$folder/last.safetensors" ]; then # written when training is over
    atlas evaluate "$folder" --suite paper
elif [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; then
    scontrol requeue "$SLURM_JOB_ID"
else
    exit 1
fi
