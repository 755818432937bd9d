#!/usr/bin/env bash
# With curl: a file, and a stream that is played while it is made.
#     examples/speak.sh [http://localhost:8000]
set -euo pipefail
url=${1:-http://localhost:8000}

curl -sf "$url/v1/audio/speech" -H 'content-type: application/json' \
    -d '{"input": "Hello world.", "voice": "default", "response_format": "mp3", "seed": 7}' -o hello.mp3

player=$(command -v aplay || true)
curl -sfN "$url/v1/audio/speech" -H 'content-type: application/json' \
    -d '{"input": "This is heard while it is made.", "response_format": "wav", "stream": true}' |
    if [ -n "$player" ]; then "$player" -q; else cat >streamed.wav; fi
