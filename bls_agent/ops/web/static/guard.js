// htmx may insert responses into the page, but must not run any code in them.

function refuse() {
  throw new Error("answers hold no code");
}

const policy = globalThis.trustedTypes?.createPolicy("console", {
  createHTML: (html) => html, // our own templates made it, and escape all values
  createScript: () => "",
});

globalThis.htmx.registerExtension("guard", { init: (api) => api.initSecurity(policy, refuse, refuse) });
