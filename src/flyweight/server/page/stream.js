// Reads the server-sent events of a streamed reply.

// Yields the JSON of each event, up to `[DONE]`.  An event with an `error` is thrown.
export async function* readEvents(response) {
  for await (const data of readData(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    yield event;
  }
  throw new Error("the reply ended too early");
}

async function* readData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        // Lines that begin with a colon are comments, which keep the connection alive.
        const lines = event.split("\n").filter((line) => line.startsWith("data: "));
        if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
}
