// The page's own copy: whoever has been here once can open it again while no gateway answers. Whatever a gateway answers comes first.

const KEPT = "dcnr-pages-1";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const home = new URL(self.registration.scope).pathname;
  if (event.request.method !== "GET" || !(pathname === home || pathname.startsWith(`${home}dashboard/`))) return;
  event.respondWith(answer(event.request));
});

async function answer(request) {
  const cache = await caches.open(KEPT);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request.url, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request.url);
    if (kept) return kept;
    throw error;
  }
}
