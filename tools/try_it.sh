#!/bin/sh
# Print lines to paste into a second terminal once the server is ready.
# Usage: try_it.sh ADDRESS MODEL
cat <<END

Once tierd says that it is ready, paste this into a second terminal:

curl -N http://$1/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "$2", "stream": true, "temperature": 0,
  "messages": [{"role": "user", "content": "Name the capital of France."}]}'

or this into Python, after \`pip install openai\`:

from openai import OpenAI
client = OpenAI(base_url="http://$1/v1", api_key="none")
answer = client.chat.completions.create(
    model="$2", temperature=0,
    messages=[{"role": "user", "content": "Name the capital of France."}])
print(answer.choices[0].message.content)

END
