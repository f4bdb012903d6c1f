// The feed of looks: server-sent events over fetch, since an EventSource can send no key and a key belongs in no address.
// It comes back by itself after everything that ends it, later each time, and says when what is shown is not of now.

const KEY = "headworks-admin-key";
const SILENT_MS = 3000;
const GIVE_UP_MS = 6000;
const BACK_OFF_MS = [500, 1000, 2000, 4000, 8000];
const HIDDEN_MS = 60000;
const LOCKED = new Set([401, 403]);

/** The key lives in this tab's session and nowhere else. */
export function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
}

/**
 * `onLook(look)` for each look, `onState(state, said)` whenever the connection changes:
 * `connecting`, `live`, `stale` (nothing comes), `locked` (a key is wanted, or another one).
 */
export class Feed {
  #abort = null;
  #tries = 0;
  #wakes = null;
  #heard = 0;
  #locked = false;
  #hiddenFor = null;

  constructor(onLook, onState) {
    this.onLook = onLook;
    this.onState = onState;
    document.addEventListener("visibilitychange", () => this.#seen());
    setInterval(() => this.#listen(), 500);
  }

  /** Until the page is closed. */
  async run() {
    for (;;) {
      if (this.#locked || document.hidden) {
        await this.#sleep(null);
        continue;
      }
      const said = await this.#follow();
      if (this.#locked) continue;
      this.onState("stale", said);
      await this.#sleep(BACK_OFF_MS[Math.min(this.#tries, BACK_OFF_MS.length - 1)]);
      this.#tries += 1;
    }
  }

  /** Try at once: somebody gave a key, or came back to the page. */
  again() {
    this.#locked = false;
    this.#tries = 0;
    this.#wakes?.();
  }

  /** Let go of the connection that there is. */
  drop() {
    this.#abort?.abort();
  }

  /** One connection to its end; returns what is to be said of that. */
  async #follow() {
    this.#abort = new AbortController();
    this.#heard = performance.now();
    try {
      const answer = await fetch("admin/feed", { headers: headers(), signal: this.#abort.signal, cache: "no-store" });
      if (!answer.ok) return await this.#refused(answer);
      await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      return "the gateway ended the feed";
    } catch (fault) {
      return fault.name === "AbortError" ? "nothing came" : "the gateway cannot be reached";
    } finally {
      this.#abort = null;
    }
  }

  async #refused(answer) {
    const said = await answer.json().then((body) => body.error.message, () => `it answered ${answer.status}`);
    if (LOCKED.has(answer.status)) {
      this.#locked = true;
      this.onState("locked", said);
    }
    return said;
  }

  async #read(reader) {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      if (events.length) this.#heard = performance.now();
      // Of several that came together only the newest is drawn: a page that was late has nothing to catch up with.
      const look = events.map(content).filter(Boolean).at(-1);
      if (look) {
        this.#tries = 0;
        this.onState("live", "");
        this.onLook(JSON.parse(look));
      }
    }
  }

  /** Twice a second: is anything coming? */
  #listen() {
    if (!this.#abort) return;
    const silent = performance.now() - this.#heard;
    if (silent > SILENT_MS) this.onState("stale", "nothing comes");
    if (silent > GIVE_UP_MS) this.drop();
  }

  /** A tab that nobody has looked at for a minute costs the gateway nothing. */
  #seen() {
    clearTimeout(this.#hiddenFor);
    if (document.hidden) {
      this.#hiddenFor = setTimeout(() => this.drop(), HIDDEN_MS);
    } else if (!this.#abort && !this.#locked) {
      this.again();
    }
  }

  #sleep(milliseconds) {
    return new Promise((wake) => {
      this.#wakes = wake;
      if (milliseconds !== null) setTimeout(wake, milliseconds);
    });
  }
}

/** What an event says; nothing for one that only says that it ends. */
function content(event) {
  return event
    .split("\n")
    .filter((line) => line.startsWith("data: "))
    .map((line) => line.slice(6))
    .join("\n");
}
