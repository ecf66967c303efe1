#!/bin/bash
# Two turns with curl and jq.
set -euo pipefail
ask() {
    curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
        --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" --data "$1"
}
body=$(jq '{model: "solver", messages: [{role: "user", content: .question}]}' <<< "$VERL_MAS_TASK")
first=$(ask "$body")
body=$(jq --argjson reply "$first" \
    '.messages += [$reply.choices[0].message, {role: "user", content: "The number alone."}]' <<< "$body")
answer=$(ask "$body" | jq --compact-output '{answer: .choices[0].message.content}')
echo "$answer" >&"$VERL_MAS_OUTCOME_FD"
