// Shows the server's OpenAPI document; asks for a key where one is needed, and keeps it in this page alone.
"use strict";

const form = document.getElementById("ask");

async function show(key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch("openapi.json", { headers });
  form.hidden = answer.status !== 401;
  if (!answer.ok) return;
  const page = SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: "#page",
    validatorUrl: null,
    deepLinking: true,
    onComplete: () => key && page.preauthorizeApiKey("bearer", key),
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("key").value);
});
show("");
