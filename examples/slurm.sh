#!/bin/bash
# Train a recipe on 8 nodes with 8 GPUs each, under SLURM.
#
#   sbatch examples/slurm.sh imagenet_350_152_256 SHARDS /shared/runs/mine
#
# The same command starts a run, resumes it, or exits at once if it has finished. SLURM sends SIGTERM two minutes before
# the time limit. The run then writes a checkpoint and exits, and the job is requeued. It is also requeued after a node
# failure. A job that wrote no checkpoint is not requeued.
#SBATCH --job-name=lambdanets
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail
recipe=$1 data=$2 run=$3
shift 3

# rendezvous on the first node; one OpenMP thread per process leaves cores for the data loading workers
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun --kill-on-bad-exit=0 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" --max-restarts 10 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:29500" \
    -m -- lambdanets train "$recipe" --data "$data" --run "$run" "$@" ||
    {
        status=$?
        # requeue only if there is a checkpoint newer than the job's start
        started=$(date -d "@$SLURM_JOB_START_TIME" '+%Y-%m-%d %H:%M:%S')
        if [ ! -f "$run/result.json" ] && [ -n "$(find "$run/checkpoints" -name last.ckpt -newermt "$started")" ]; then
            scontrol requeue "$SLURM_JOB_ID"
        fi
        exit "$status"
    }
