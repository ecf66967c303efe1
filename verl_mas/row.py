"""Every tag and field name that a row carries. Nobody else spells them."""

# Tags: small, kept with the row's key, so rows are split and grouped without moving a tensor.
POLICY = "policy"
AGENT = "agent"
ROLE = "role"
TURN = "turn"
BRANCH = "branch"
SESSION = "session"
TRAINABLE = "trainable"
COMMITTED = "committed"  # False: a candidate that its session did not go on with
MALFORMED = "malformed"
TEAM_REWARD = "team_reward"
LOCAL_REWARD = "local_reward"
PENALTY = "penalty"
OBSERVATION = "observation"  # a stable hash of the prompt's token ids
IS_PADDING = "is_padding"  # verl's

# Fields: verl's own names.
UID = "uid"
RESPONSE_MASK = "response_mask"
SCORES = "rm_scores"
REWARDS = "token_level_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
OLD_LOG_PROBS = "old_log_probs"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
REWARD_EXTRA_INFO = "reward_extra_info"

# Fields: ours.
TEMPERATURE = "temperature"  # a row's own; also a tag. verl's engines read it where the trainer sets none
