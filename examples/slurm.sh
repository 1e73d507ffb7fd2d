#!/bin/bash
# Train by a recipe on 8 machines with 8 GPUs each, under SLURM.
#
#   sbatch examples/slurm.sh imagenet_350_152_256 SHARDS /shared/runs/mine
#
# The same command starts a run, continues it, and does nothing once it is finished. Before its time is up SLURM sends
# SIGTERM, on which the run writes a checkpoint and ends, and the job queues itself again; so does SLURM after a lost
# machine. A job that wrote no checkpoint is not queued again.
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

# The machine that the others meet at, and as many threads a process as leave cores for the workers that decode images.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun --kill-on-bad-exit=0 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" --max-restarts 10 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:29500" \
    -m -- lambdanets train "$recipe" --data "$data" --run "$run" "$@" ||
    {
        status=$?
        # a checkpoint newer than the job's start: it got on, and stopped for want of time or a machine
        started=$(date -d "@$SLURM_JOB_START_TIME" '+%Y-%m-%d %H:%M:%S')
        if [ ! -f "$run/result.json" ] && [ -n "$(find "$run/checkpoints" -name last.ckpt -newermt "$started")" ]; then
            scontrol requeue "$SLURM_JOB_ID"
        fi
        exit "$status"
    }
