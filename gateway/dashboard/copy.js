// Puts the page's files aside, so that it opens while its gateway is away (sw.js). Only where the browser allows it: https, or this machine itself.

const KEPT = "dcnr-pages-1";
const LATER = ["dashboard/vendor/uplot.js"];

/** Returns when the copy is made; quietly does nothing where there can be none. */
export async function keepCopy() {
  if (!navigator.serviceWorker || !globalThis.caches) return;
  try {
    await navigator.serviceWorker.register("dashboard/sw.js", { scope: "./" });
    await navigator.serviceWorker.ready;
    const loaded = performance.getEntriesByType("resource").map(({ name }) => name).filter((name) => name.includes("/dashboard/") && !name.endsWith("/sw.js"));
    const home = location.href.split("#")[0];
    await (await caches.open(KEPT)).addAll([...new Set([home, ...loaded, ...LATER.map((path) => new URL(path, document.baseURI).href)])]);
    document.documentElement.dataset.copy = "kept";
  } catch (error) {
    console.info("no copy of this page is kept:", error.message);
  }
}
