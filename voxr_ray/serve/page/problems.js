// What went wrong, as sentences. The server's own message names value, limit and remedy, so it is always shown; the
// title says what that means to somebody who has never read the documentation.
const TITLES = {
  invalid_value: "Something in the request does not fit.",
  invalid_request: "Something in the request does not fit.",
  too_large: "That is more than this server takes at once.",
  bad_audio: "This recording cannot be used.",
  invalid_api_key: "The server asks for a key.",
  voice_not_found: "This voice is gone.",
  voice_exists: "A voice of that name exists already.",
  model_not_found: "The server speaks with another model now.",
  body_too_large: "That is too large to send.",
  unsupported_media_type: "The server does not read this kind of file.",
  timeout: "It took too long.",
  overloaded: "Every slot is taken right now.",
  engine_stopped: "The engine has stopped and is being replaced.",
  unreachable: "The server cannot be reached.",
  broken: "The connection broke off.",
};

const BY_PARAM = {
  input: "This text cannot be spoken as it is.",
  voice: "This voice cannot be used here.",
  instructions: "The style cannot be used here.",
  seed: "The seed is out of range.",
  name: "This name cannot be used.",
};

export class Problem extends Error {
  constructor({ message = "", param = null, code = "", status = 0, retryAfterS = null }) {
    super(message);
    Object.assign(this, { param, code, status, retryAfterS });
  }

  get title() {
    const own = this.code === "invalid_value" ? BY_PARAM[this.param] : undefined;
    const kind = this.status >= 500 ? "The server failed at this." : "It did not work.";
    return own ?? TITLES[this.code] ?? kind;
  }

  get text() {
    if (this.code === "unreachable") return "Is it still running? Check the connection, then try again.";
    const said = sentence(this.message);
    return this.retryAfterS === null ? said : `${said} Try again in ${plural(this.retryAfterS, "second")}.`;
  }
}

/** The problem an answer stands for. Answers of proxies on the way have no JSON. */
export async function problemOf(answer) {
  const { error } = await answer.json().catch(() => ({})) ?? {};
  const wait = Number(answer.headers.get("retry-after"));
  return new Problem({
    message: error?.message ?? `The answer was ${answer.status} ${answer.statusText}.`,
    param: error?.param ?? null,
    code: error?.code ?? "",
    status: answer.status,
    retryAfterS: wait > 0 ? wait : null,
  });
}

/** What was thrown, as a Problem; nothing for a deliberate stop. */
export function asProblem(error) {
  if (error.name === "AbortError") return null;
  if (error instanceof Problem) return error;
  console.error(error);
  return new Problem({ message: error.message || String(error) });
}

export const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

function sentence(text) {
  const trimmed = text.trim();
  if (!trimmed) return "";
  const begun = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
