#!/usr/bin/env bash
# A run on Slurm: the job starts a Ray cluster on all of its nodes, and stops it after the run.
#     source .venv/bin/activate
#     sbatch cluster/slurm.sh launch scenarios/cifar100_hetero.yaml --set output=runs
# The script's arguments are those of `raysim`. All nodes must share the folder, with .venv and data.
#SBATCH --job-name=raysim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --output=raysim-%j.log
#SBATCH --signal=B:TERM@120
set -euo pipefail

if (($# == 0)); then
    echo "usage: sbatch $0 launch SCENARIO, or another command of raysim" >&2
    exit 2
fi

# Ports from the job's id, below the ephemeral range, so that jobs on the same node rarely collide.
port=$((20000 + SLURM_JOB_ID % 3000 * 4))
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
read -r head_ip _ < <(hostname -I) # this script runs on the first node; set HEAD_IP to choose a network
head_ip=${HEAD_IP:-$head_ip}
temp=${RAY_TMPDIR:-/tmp}/raysim-$SLURM_JOB_ID # RAY_TMPDIR: at most 19 characters, because names of sockets are limited
cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}

# Any program with the token can run code as you, so each job has its own token, in a file that only you can read.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/slurm-$SLURM_JOB_ID.token
unset RAY_AUTH_TOKEN # Ray would prefer it, and other users of another cluster may know it
mkdir -p "$HOME/.ray"
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")

on() { # NODES COUNT COMMAND...: run once on each of these nodes, in parallel with other steps. Replaces the shell.
    exec srun --export=ALL --overlap --nodelist="$1" --nodes="$2" --ntasks="$2" --cpus-per-task="$cpus" "${@:3}"
}

steps=()
# shellcheck disable=SC2329 # the trap calls it
cleanup() {
    kill "${steps[@]}" 2>/dev/null || true # ends `ray start --block` and its Ray
    wait "${steps[@]}" 2>/dev/null || true
    (on "$SLURM_JOB_NODELIST" "${#hosts[@]}" rm -rf "$temp") || true
    rm -f "$RAY_AUTH_TOKEN_PATH"
}
trap cleanup EXIT

alive() { # COUNT: wait until this number of nodes has joined
    timeout 300 python - "$1" <<'PYTHON' || { echo "raysim: waited for $1 Ray node(s) in vain" >&2 && exit 1; }
import sys, time, ray
while not ray.is_initialized():
    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError):
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(1)
PYTHON
}

# Ray makes its folder and its sockets writable for all users of a node, so they are in a folder that only you can enter.
# shellcheck disable=SC2016 # the shell of each node expands it
(on "$SLURM_JOB_NODELIST" "${#hosts[@]}" bash -c 'rm -rf "$1" && mkdir -m 700 "$1"' - "$temp")

# The head node runs clients too, because the job has reserved it. Ray chooses the ports that are 0.
export RAY_ADDRESS=$head_ip:$port
common=(--block --num-cpus="$cpus" --dashboard-agent-listen-port=$((port + 2))
    --min-worker-port=0 --max-worker-port=0 --disable-usage-stats)
on "${hosts[0]}" 1 ray start --head --node-ip-address="$head_ip" --port="$port" --temp-dir="$temp/ray" \
    --dashboard-host=127.0.0.1 --dashboard-port=$((port + 1)) --ray-client-server-port=$((port + 3)) "${common[@]}" &
steps+=($!)
alive 1
if ((${#hosts[@]} > 1)); then
    others=$(IFS=, && echo "${hosts[*]:1}")
    on "$others" $((${#hosts[@]} - 1)) ray start --address="$RAY_ADDRESS" "${common[@]}" &
    steps+=($!)
    alive "${#hosts[@]}" # raysim plans for the nodes that are alive when it starts
fi

# In the background, because a shell handles no signal while a foreground command runs.
raysim "$@" &
run=$!
stopped=
trap 'stopped=1; kill -TERM "$run"' TERM INT
code=0
wait "$run" || code=$?
if [[ $stopped ]]; then # the signal ended the first wait: wait for the run, which stops as with Ctrl-C
    code=0
    wait "$run" || code=$?
fi
exit "$code"
