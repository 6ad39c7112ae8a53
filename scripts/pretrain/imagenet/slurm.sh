#!/usr/bin/env bash
# Any script of this folder on a SLURM cluster: sbatch scripts/pretrain/imagenet/slurm.sh hcsc.sh [flags]
# from the project's folder, with its environment active. Batch 256 over all GPUs.
# Ten jobs run one after another: each goes on from the newest checkpoint of the one before (--auto_resume), be it that
# its time was up, that it was preempted or that a machine failed; a finished run says that there is nothing to do.
#SBATCH --job-name=solo_hcsc
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --time=24:00:00
#SBATCH --array=1-10%1
#SBATCH --requeue
#SBATCH --output=slurm-%A.log
#SBATCH --open-mode=append
set -eu
script=$1
shift
export LAUNCH="srun --kill-on-bad-exit=1 python"
exec bash "${SLURM_SUBMIT_DIR:-.}/scripts/pretrain/imagenet/$script" \
    --num_nodes "$SLURM_NNODES" \
    --gpus "$(seq -s, 0 $((SLURM_NTASKS / SLURM_NNODES - 1)))" \
    --batch_size $((256 / SLURM_NTASKS)) \
    --checkpoint_every_n_steps 1000 \
    --auto_resumer_max_hours 8760 \
    "$@"
