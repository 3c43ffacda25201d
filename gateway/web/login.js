/** The form leads to the asked page; what the address names on that page (`#call=ID`) goes with it. */

const form = document.querySelector("form");
form.addEventListener("submit", () => (form.action = new URL(location.hash, form.action)));
