#!/bin/bash
# Train a team for two steps on a Slurm of one node and two CPUs with scripts/clusters/slurm.sbatch, on the CPU platform.
#
#     apt-get install slurm-wlm munge
#     scripts/slurm.sh [FOLDER]      # as root; the folder gets the log, the checkpoints and Slurm's files
#
# `ray symmetric-run` ends with `ray stop`, which ends every Ray on the machine, and `ray start` writes a file that other
# runs join. So all of it has processes and a /tmp/ray of its own.
set -euo pipefail
unset OMP_NUM_THREADS  # nproc prints it in place of the cores
cd "$(dirname "$0")/.."
if [[ ${1:-} != inside ]]; then
    folder=$(realpath "${1:-$(mktemp -d)}")
    exec unshare --pid --fork --kill-child --mount --mount-proc bash scripts/slurm.sh inside "$folder"
fi
folder=$2
python=$PWD/.venv/bin/python
mkdir -p /tmp/ray "$folder"/{state,spool,munge}
mount -t tmpfs none /tmp/ray
chmod 700 "$folder/munge"

port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
cat > "$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=localhost
SlurmctldPort=$(port)
SlurmdPort=$(port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
NodeName=localhost NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
head -c 1024 /dev/urandom > "$folder/munge/key"
chmod 400 "$folder/munge/key"
munged --force --foreground --socket="$folder/munge/socket" --key-file="$folder/munge/key" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" &
until [[ -S $folder/munge/socket ]]; do sleep 0.1; done
slurmctld -D &
slurmd -D -N localhost &
until [[ $(sinfo --noheader --format=%t 2> /dev/null) == idle ]]; do sleep 0.5; done

"$python" -m verl_mas.testing.letters "$folder/task" > /dev/null
export PATH=$PWD/.venv/bin:$PATH RAY_AUTH_TOKEN RAY_PORT RAY_OPTIONS="--num-cpus=64 --num-gpus=1 --include-dashboard=false"
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
RAY_PORT=$(port)
# This Slurm has no GPUs to ask for.
sed '/#SBATCH --gpus-per-node/d' scripts/clusters/slurm.sbatch > "$folder/job.sh"
cat > "$folder/probes.sh" <<'PROBES'
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --exclusive
echo "cores of a step with --exact: $(srun --exact --ntasks-per-node=1 nproc)"
step="srun --ntasks-per-node=1 --cpus-per-task=$SLURM_CPUS_ON_NODE --cpu-bind=none"
echo "cores of this step: $($step nproc)"
$step verl-mas check +recipe=math/separate | grep -A2 "Slurm step"
PROBES
echo "cores of a task by default: $(srun nproc)"
sbatch --wait --output="$folder/probes.log" "$folder/probes.sh"
teams=$PWD/tests/trainer/teams.py
cd "$folder"
sbatch --wait --nodes=1 --output="$folder/job.log" job.sh \
    python -m verl.trainer.main_ppo +platform=cpu +recipe=first_run/laptop +mas=team mas.workflow.name=Pair \
    mas.workflow.path="$teams" 'mas.policies={a: {}, b: {}}' \
    'mas.agents={writer: {policy: a}, copier: {policy: b}}' algorithm.adv_estimator=agent_grpo \
    data.train_files=task/train.parquet data.val_files=task/test.parquet data.max_prompt_length=128 \
    actor_rollout_ref.model.path=task/model data.train_batch_size=4 actor_rollout_ref.rollout.n=2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 trainer.total_training_steps=2 trainer.test_freq=-1 \
    trainer.val_before_train=false trainer.save_freq=2 trainer.default_local_dir="$folder/run" && code=0 || code=$?
grep --no-filename -E "^cores of|Slurm step|step [0-9] \|" -A1 probes.log job.log || true
echo "job ended with $code; its log is $folder/job.log"
exit "$code"
