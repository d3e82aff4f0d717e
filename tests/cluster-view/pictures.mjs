// Pictures of every page of a cluster: node tests/cluster-view/pictures.mjs URL NODE RUN DIR
//
// NODE and RUN are those whose own pages are taken. JPEG of quality 70: small enough for git.

import { mkdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { launch, open, PHONE, WIDE } from '../console/browser.mjs';

const [url, node, run, folder] = process.argv.slice(2);
const [{ name: dataset }] = await (await fetch(`${url}v1/datasets`)).json();
const { shards: [{ shard }] } = await (await fetch(`${url}v1/hot?limit=1`)).json();
const PAGES = {
  overview: '#/', nodes: '#/nodes', node: `#/nodes/${node}`, shards: '#/shards', runs: '#/runs', run: `#/runs/${run}`,
  datasets: '#/datasets', dataset: `#/datasets/${dataset}`, sample: `#/datasets/${dataset}/samples/7`, plan: `#/datasets/${dataset}?view=plan`,
  shard: `#/shards/${shard}`, partitions: `#/datasets/${dataset}?view=partitions`,
};
const LOOKS = [['light', WIDE, false], ['dark', WIDE, true], ['phone', PHONE, false]];

await mkdir(folder, { recursive: true });
const browser = await launch();
for (const [look, size, dark] of LOOKS) {
  for (const [name, hash] of Object.entries(PAGES)) {
    const { page, context, faults } = await open(browser, `${url}${hash}`, { size, dark });
    page.setDefaultTimeout(60_000);
    await page.waitForFunction(() => document.querySelector('main h1') && !document.querySelector('.wait'));
    await page.waitForFunction(() => [...document.querySelectorAll('.chart .plot')].every((plot) => plot.querySelector('canvas')));
    const path = join(folder, `${name}-${look}.jpg`);
    await page.screenshot({ path, type: 'jpeg', quality: 70 });
    console.log(`${(await stat(path)).size} ${path}${faults.length > 0 ? ` ${faults.join('; ')}` : ''}`);
    await context.close();
  }
}
await browser.close();
