#!/bin/bash
#SBATCH --gres=gpu:2 --output=%j.out --open-mode=append
#WATTLINE deadline=30min weight=2 gpus=1-4 elasticity=malleable checkpoint=usr1
#WATTLINE workload=demo work=6000 save=1s load=2s
# A training stand-in as a batch script; TRAIN is where train.pl is, if not beside this script.
exec perl "${TRAIN:-$(dirname "$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')")/train.pl}" \
  --work 6000 --rate 20 --checkpoint "$SLURM_JOB_ID.state" --save 1 --load 2
