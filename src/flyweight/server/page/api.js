// Requests to the server that this page came from, with the user's key.
// Addresses are relative to the page, so no request leaves that server.  The key is kept in the tab's session storage.

const STORED = "flyweight.key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

export class Api {
  #key = sessionStorage.getItem(STORED) ?? "";
  #asking = null; // while a dialog is open; other requests wait for it
  #asked = 0; // dialogs so far

  // `askKey(wrong)` resolves to a key, or to null if the user cancels; `wrong`: a key was sent and refused.
  // `onAccepted()` is called when the server has accepted a new key.
  constructor(askKey, onAccepted) {
    [this.askKey, this.onAccepted] = [askKey, onAccepted];
  }

  async getJson(path) {
    return (await this.send(path)).json();
  }

  async getText(path) {
    return (await this.send(path)).text();
  }

  async post(path, body, signal) {
    const headers = { "content-type": "application/json" };
    return this.send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  // A response that is not an error.  Throws `ApiError`, also where the server does not answer (status 0).
  async send(path, options = {}) {
    for (;;) {
      const [key, asked] = [this.#key, this.#asked];
      const response = await this.#fetch(path, options, key);
      if (response.status !== 401) {
        this.#keep(key);
        if (!response.ok) throw new ApiError(response.status, await readError(response));
        return response;
      }
      const message = await readError(response);
      if (key !== this.#key) continue; // another was given meanwhile
      if (asked !== this.#asked && !this.#asking) throw new ApiError(401, message); // the user has cancelled meanwhile
      await this.#replaceKey(key !== "", message);
    }
  }

  async #fetch(path, options, key) {
    const headers = key ? { ...options.headers, authorization: `Bearer ${encodeKey(key)}` } : options.headers;
    try {
      return await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the server does not answer");
    }
  }

  #keep(key) {
    if (key === "" || key === sessionStorage.getItem(STORED)) return;
    sessionStorage.setItem(STORED, key);
    this.onAccepted();
  }

  async #replaceKey(wrong, message) {
    sessionStorage.removeItem(STORED);
    if (!this.#asking) {
      this.#asked += 1;
      this.#asking = this.askKey(wrong).finally(() => (this.#asking = null));
    }
    const key = await this.#asking;
    if (key === null) throw new ApiError(401, message);
    this.#key = key;
  }
}

// Headers are bytes: the key's UTF-8, one character a byte.
function encodeKey(key) {
  return String.fromCharCode(...new TextEncoder().encode(key));
}

async function readError(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}
