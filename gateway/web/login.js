/** The form leads to the requested page and keeps the fragment of its address (`#call=ID`). */

const form = document.querySelector("form");
form.addEventListener("submit", () => (form.action = new URL(location.hash, form.action)));
