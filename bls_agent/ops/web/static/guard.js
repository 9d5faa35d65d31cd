// htmx may put answers into the page, and run nothing that stands in them.

function refuse() {
  throw new Error("answers hold no code");
}

const policy = globalThis.trustedTypes?.createPolicy("console", {
  createHTML: (html) => html, // of our own templates, which escape everything
  createScript: () => "",
});

globalThis.htmx.registerExtension("guard", { init: (api) => api.initSecurity(policy, refuse, refuse) });
