#!/usr/bin/env bash
# Any script of this folder on several machines, started by torchrun; run it on each of them:
#   NODES=4 HEAD=first-machine:29500 bash scripts/pretrain/imagenet/torchrun.sh hcsc.sh [flags]
# GPUS is their number in each machine, 8 if not given. Batch 256 over all. If a process fails, torchrun starts all of
# them again (three times), and --auto_resume goes on from the newest checkpoint.
set -eu
NODES=${NODES:-1} GPUS=${GPUS:-8} script=$1
shift
export LAUNCH="python -m torch.distributed.run --nnodes $NODES --nproc_per_node $GPUS --max_restarts 3
    --rdzv_backend c10d --rdzv_endpoint ${HEAD:-localhost:29500} --rdzv_id $script"
exec bash "$(dirname "$0")/$script" \
    --num_nodes "$NODES" \
    --gpus "$(seq -s, 0 $((GPUS - 1)))" \
    --batch_size $((256 / NODES / GPUS)) \
    --checkpoint_every_n_steps 1000 \
    --auto_resumer_max_hours 8760 \
    "$@"
