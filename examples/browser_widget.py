"""A call button on a site of yours: the page, and the site's server that gets each visitor a token.

    TALKSPURT_API_KEY=... python examples/browser_widget.py     then open http://127.0.0.1:8000/

`TALKSPURT` is the server's address (http://127.0.0.1:8080), `ROUTE` whom the button calls (default). The server's
configuration lists this site in `webrtc.allowed_origins`. The API key stays here; visitors see only the token, which
is good for calls of one route for some minutes. Needs: pip install aiohttp
"""

from __future__ import annotations

import os

import aiohttp
from aiohttp import web

TALKSPURT = os.environ.get("TALKSPURT", "http://127.0.0.1:8080")
ROUTE = os.environ.get("ROUTE", "default")
KEY = os.environ.get("TALKSPURT_API_KEY", "")

PAGE = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Our shop</title>
<link rel="icon" href="data:,">
<h1>Our shop</h1>
<button id="talk">Talk to us</button> <p id="words" role="status"></p>
<script type="module">
  import {{Call}} from "{TALKSPURT}/web/talkspurt.js";
  let call;
  talk.onclick = async () => {{
    if (call && call.state !== "ended") return call.hangup();
    const answer = await fetch("/token", {{method: "POST"}});
    if (!answer.ok) return words.textContent = "Nobody can be called at the moment.";
    call = new Call({{route: "{ROUTE}", token: (await answer.json()).token}});
    call.on("caption", ({{text}}) => words.append(text));
    call.on("prompt", ({{voicePrompt, last}}) => last && words.append(` You: ${{voicePrompt}} `));
    call.on("state", ({{state}}) => talk.textContent = state === "ended" ? "Talk to us" : "Hang up");
    call.start().catch(error => words.textContent = error.message);
  }};
</script></html>"""


async def page(request: web.Request) -> web.Response:
    return web.Response(text=PAGE, content_type="text/html")


async def token(request: web.Request) -> web.Response:
    """Get a token. Here your site decides who may call: signed-in visitors, some calls an hour."""
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{TALKSPURT}/v1/tokens", json={"scope": "call", "route": ROUTE}) as answer:
            if not answer.ok:
                return web.Response(status=502)
            return web.json_response({"token": (await answer.json())["token"]})


def main() -> None:
    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_post("/token", token)
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))


if __name__ == "__main__":
    main()
