// Pictures of every page, in a folder: node tests/console/screenshots.mjs DIR [SCENARIO...]

import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { launch, open, PHONE, WIDE } from './browser.mjs';
import { HOSTILE } from './datasets.mjs';
import { FixtureServer } from './fixture-server.mjs';

const [folder = 'screenshots', ...scenarios] = process.argv.slice(2);
await mkdir(folder, { recursive: true });
const PAGES = {
  healthy: {
    overview: '#/', datasets: '#/datasets', flowers: '#/datasets/flowers', columns: '#/datasets/flowers?view=columns', labels: '#/datasets/flowers?view=labels', versions: '#/datasets/flowers?view=versions',
    step: '#/datasets/flowers?order=epoch', text: '#/datasets/tinyshakespeare', sounds: '#/datasets/speech-commands', digits: '#/datasets/digits', nested: '#/datasets/dialogues',
    picture: '#/datasets/flowers/samples/7', digit: '#/datasets/digits/samples/4', dialogue: '#/datasets/dialogues/samples/1', sentence: '#/datasets/tinyshakespeare/samples/5',
  },
  trouble: { overview: '#/', nodes: '#/nodes', node: '#/nodes/n2', shards: '#/shards', shard: `#/shards/${'ab'.repeat(32)}`, runs: '#/runs', run: '#/runs/vit-b16' },
  idle: { overview: '#/' },
  lost: { overview: '#/', node: '#/nodes/n4' },
  large: { overview: '#/', nodes: '#/nodes?order=disk', shards: '#/shards?by=latency', 'version-shards': '#/datasets/web-pairs?view=shards', labels: '#/datasets/web-pairs?view=labels' },
  hostile: { overview: '#/', node: `#/nodes/${encodeURIComponent('"><svg onload=window.__owned=1> ../../v1/%2e%2e?#')}`, runs: '#/runs', dataset: `#/datasets/${encodeURIComponent(HOSTILE)}`, sample: `#/datasets/${encodeURIComponent(HOSTILE)}/samples/1`, columns: `#/datasets/${encodeURIComponent(HOSTILE)}?view=columns` },
};
/** Looks that need more than an address. */
const MOMENTS = {
  async token(server, page) {
    server.tokens = { shardd_admin: { role: 'admin' } };
    await page.goto(server.url);
    await page.getByLabel('Token', { exact: true }).fill('shardd_wrong');
    await page.getByRole('button', { name: 'Use the token' }).click();
    await page.getByText('The node refused the token').waitFor();
  },
  async drain(server, page) {
    await page.goto(`${server.url}#/nodes/n3`);
    await page.getByRole('button', { name: 'Drain …' }).click();
  },
  async rate(server, page) {
    await page.goto(`${server.url}#/nodes/n3`);
    await page.getByRole('button', { name: 'Exchange rate …' }).click();
  },
  async away(server, page) {
    await page.goto(server.url);
    await page.locator('.finding').first().waitFor();
    await server.stop();
    await page.locator('.away').waitFor();
    await page.waitForTimeout(1500);
  },
};
const LOOKS = [['light', WIDE, false], ['dark', WIDE, true], ['phone', PHONE, false], ['phone-dark', PHONE, true]];
const browser = await launch();
for (const [scenario, pages] of Object.entries(PAGES)) {
  if (scenarios.length > 0 && !scenarios.includes(scenario)) continue;
  const server = await new FixtureServer({ scenario }).start();
  for (const [name, hash] of Object.entries(pages)) {
    for (const [look, size, dark] of LOOKS) {
      const { page, context, faults } = await open(browser, `${server.url}${hash}`, { size, dark });
      await page.waitForLoadState('networkidle', { timeout: 3000 }).catch(() => undefined);
      await page.waitForTimeout(700);
      await page.screenshot({ path: join(folder, `${scenario}-${name}-${look}.png`) });
      await page.screenshot({ path: join(folder, `${scenario}-${name}-${look}-full.png`), fullPage: true });
      if (faults.length > 0) console.log(scenario, name, look, faults);
      await context.close();
    }
  }
  await server.stop();
}
for (const [name, moment] of Object.entries(MOMENTS)) {
  if (scenarios.length > 0 && !scenarios.includes(name)) continue;
  for (const [look, size, dark] of LOOKS) {
    const server = await new FixtureServer({ scenario: 'trouble' }).start();
    const { page, context } = await open(browser, 'about:blank', { size, dark });
    await moment(server, page);
    await page.waitForTimeout(600);
    await page.screenshot({ path: join(folder, `${name}-${look}.png`) });
    await context.close();
    await server.stop().catch(() => undefined);
  }
}
await browser.close();
