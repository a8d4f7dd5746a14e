#!/bin/bash
#SBATCH --job-name=cretta
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
# A Ray cluster on all nodes of a job, and a command of cretta on it:
#   sbatch examples/slurm.sh reproduce imagenet --scale full --store /shared/results
# Submit the same line again if the time was not enough: what is finished is not computed again.
# Not executed yet: no SLURM was available.
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_MODE=token  # in ~/.ray/auth_token, which all nodes see: nobody else can use this cluster
ray get-auth-token --generate > /dev/null
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=${RAY_PORT:-6379}
address=${nodes[0]}:$port
node=(ray start --block --num-cpus "${SLURM_CPUS_PER_TASK:-1}")

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" "${node[@]}" --head --port "$port" --include-dashboard false &
until ray status --address "$address" > /dev/null 2>&1; do sleep 2; done
for name in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --nodelist="$name" "${node[@]}" --address "$address" &
done
cretta "$@" --engine ray --address "$address"
