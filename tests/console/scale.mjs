// What pages of a large cluster take: bytes of their requests, elements, memory, and the time to their first paint.
//
//     node tests/console/scale.mjs URL
//
// A server test starts it beside a cluster of a thousand nodes (server/src/http/tests/large.rs). Fails where a page asks for more
// than it shows. Without Chromium, or without the packages of tests/console, nothing is looked at, with status 0.

import assert from 'node:assert/strict';

const [url] = process.argv.slice(2);
const KIB = 1024;
const MIB = 1024 * KIB;
/** The most that a page may take: bytes of its answers in its first seconds, elements, bytes of memory. Files of the page are apart. */
const MOST = { answers: 512 * KIB, elements: 6000, memory: 48 * MIB };
/** Each page, and what it shows once it is there. */
const PAGES = [
  ['#/', /1,000 nodes live/],
  ['#/nodes?order=cache', /1,000 nodes/],
  ['#/nodes/n0617', /Node n0617/],
  ['#/runs/large', /Ranks that wait most \(\d+ of 999\)/],
  ['#/shards', /Shards/],
  ['#/datasets', /vast/],
  ['#/datasets/vast?view=shards', /100,000 shards/],
  ['#/datasets/small?view=plan', /Distance from a full shuffle/],
];

const { CHROMIUM, launch, open } = await import('./browser.mjs').catch((error) => {
  if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
  return {};
});
if (CHROMIUM === undefined) {
  console.log('skipped: no Chromium, or no packages of tests/console; no browser looks at the pages');
  process.exit(0);
}
const browser = await launch();
console.log('page                               requests    answers  elements   memory  first paint');
for (const [hash, words] of PAGES) {
  // A run without a placement and a record is answered with 404.
  const { page, context, faults } = await open(browser, `${url}/LICENSES.txt`, { forgives: [/status of 404/] });
  let [requests, answers] = [0, 0];
  page.on('requestfinished', async (request) => {
    if (!new URL(request.url()).pathname.startsWith('/v1/')) return;
    requests += 1;
    const { responseBodySize } = await request.sizes();
    answers += responseBodySize;
  });
  await page.goto(`${url}/${hash}`);
  await page.getByText(words).first().waitFor({ timeout: 60_000 });
  await page.waitForTimeout(2000);
  const client = await context.newCDPSession(page);
  await client.send('HeapProfiler.collectGarbage');
  const { usedSize: memory } = await client.send('Runtime.getHeapUsage');
  const { elements, paint } = await page.evaluate(() => ({
    elements: document.querySelectorAll('*').length,
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN,
  }));
  console.log(`${hash.padEnd(34)} ${String(requests).padStart(8)} ${`${(answers / KIB).toFixed(0)} KiB`.padStart(10)} ${String(elements).padStart(9)} ${`${(memory / MIB).toFixed(1)} MiB`.padStart(8)} ${`${paint.toFixed(0)} ms`.padStart(12)}`);
  assert.ok(faults.length === 0, `${hash} breaks a rule: ${faults.join('; ')}`);
  assert.ok(answers <= MOST.answers, `${hash} had answers of ${answers} bytes`);
  assert.ok(elements <= MOST.elements, `${hash} has ${elements} elements`);
  assert.ok(memory <= MOST.memory, `${hash} takes ${memory} bytes`);
  await context.close();
}
await browser.close();
