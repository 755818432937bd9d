// Calls to the server this page came from: the key, the addresses, and errors as sentences.
import { Problem, problemOf } from "./problems.js";

const KEY = "voxr-api-key";

// The page may be mounted below a prefix: it lies beside "v1/".
export const BASE = new URL("./", location.href);

// Of this tab alone, and gone with it.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Call the server. Resolves to the answer once it has begun; whatever is no success is thrown as a Problem. */
export async function call(path, { json, ...options } = {}) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("authorization", `Bearer ${key.get()}`);
  if (json !== undefined) {
    headers.set("content-type", "application/json");
    options = { ...options, method: "POST", body: JSON.stringify(json) };
  }
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "unreachable" });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}
