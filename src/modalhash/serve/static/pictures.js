// Query pictures. A URL cannot contain one, so the browser stores the last few, for at most a day, in case the page is
// reloaded. A private window stores nothing, so none is found there.

const MOST = 8;
const MOST_BYTES = 64 * 1024 * 1024;
const MOST_AGE = 24 * 60 * 60 * 1000; // ms

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function transaction(act) {
  const opening = indexedDB.open("modalhash", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("pictures", { keyPath: "id" });
  const database = await done(opening);
  try {
    return await act(database.transaction("pictures", "readwrite").objectStore("pictures"));
  } finally {
    database.close(); // once the transaction is through
  }
}

async function dropOld(store) {
  const kept = (await done(store.getAll())).sort((one, other) => other.time - one.time);
  let bytes = 0;
  kept.forEach(({ id, time, picture }, place) => {
    bytes += picture.size;
    if (place >= MOST || bytes > MOST_BYTES || Date.now() - time > MOST_AGE) store.delete(id);
  });
}

export async function keep(id, picture) {
  if (picture.size > MOST_BYTES) return;
  await transaction(async (store) => {
    await done(store.put({ id, picture, time: Date.now() }));
    await dropOld(store);
  }).catch(() => {});
}

export async function recall(id) {
  const found = await transaction(async (store) => {
    await dropOld(store);
    return done(store.get(id));
  }).catch(() => null);
  return found?.picture;
}

export async function forget(id) {
  await transaction((store) => done(store.delete(id))).catch(() => {});
}
