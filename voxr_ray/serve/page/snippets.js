// The current settings as commands and programs, ready to be run where the server can be reached.

const FILE = "recording.wav"; // stands for the recording at hand

/** @param request Body of a speech request; ref_audio is true where a recording is sent. */
export function curl(base, request, hasKey) {
  const { ref_audio: clip, ...body } = request;
  const out = `-o speech.${request.response_format}`;
  const head = [`curl -sf ${base}v1/audio/speech`, "-H 'content-type: application/json'"];
  if (hasKey) head.push('-H "authorization: Bearer $VOXR_API_KEY"');
  if (!clip) return [...head, `-d ${quoted(JSON.stringify(body))}`, out].join(" \\\n  ");
  const open = `${JSON.stringify(body).slice(0, -1)},"ref_audio":"`;
  const parts = `{ printf %s ${quoted(open)}; base64 < ${FILE} | tr -d '\\n'; printf '"}'; } |`;
  return `${parts}\n${[...head, "-d @-", out].join(" \\\n  ")}`;
}

export function python(base, request, hasKey) {
  const { input, model, voice, response_format: format, instructions, ref_audio: clip, ...rest } = request;
  const lines = [];
  if (clip) lines.push("import base64");
  if (hasKey) lines.push("import os");
  if (lines.length) lines.push("");
  lines.push("from openai import OpenAI", "");
  if (clip) lines.push(`with open("${FILE}", "rb") as file:`, "    recording = base64.b64encode(file.read()).decode()", "");
  lines.push(`client = OpenAI(base_url="${base}v1", api_key=${hasKey ? 'os.environ["VOXR_API_KEY"]' : '"none"'})`);
  lines.push("speech = client.audio.speech.create(");
  lines.push(`    model=${literal(model)},`, `    voice=${literal(voice ?? "default")},`, `    input=${literal(input)},`);
  if (instructions) lines.push(`    instructions=${literal(instructions)},`);
  lines.push(`    response_format="${format}",`);
  const extra = Object.entries(rest).map(([name, value]) => `"${name}": ${literal(value)}`);
  if (clip) extra.push('"ref_audio": recording');
  if (extra.length) lines.push(`    extra_body={${extra.join(", ")}},`);
  lines.push(")", `speech.write_to_file("speech.${format}")`);
  return lines.join("\n");
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON text or number is one of Python's, too. */
const literal = (value) => (typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value));
