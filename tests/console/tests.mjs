// The console in a real browser: against the fixtures, or with --node URL against a node.
//
//     node tests/console/tests.mjs [--node URL] [WORD...]     # WORD: only tests whose names have it
//
// Against a node that requires tokens, SHARDD_TOKEN has one. The last line is `N passed, N failed`.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { launch, open, PHONE, WIDE } from './browser.mjs';
import { Datasets, HOSTILE } from './datasets.mjs';
import { FixtureServer } from './fixture-server.mjs';
import { Cluster, SCENARIOS } from './fixtures.mjs';
import { EARLY, SPIKE } from './trainings.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const given = process.argv.slice(2);
const at = given.indexOf('--node');
const node = at < 0 ? undefined : given.splice(at, 2)[1];
/** The longest wait for something to be so, in milliseconds. Machines of CI are slow at times. */
const PATIENCE = 20_000;

const SIZES = { 1280: WIDE, 390: PHONE };
const tests = [];
const test = (name, run) => tests.push({ name, run });
const browser = await launch();

/** A page against a server of fixtures; both end with the test. */
async function visit(server, hash, options, use) {
  const seen = await open(browser, `${server.url}${hash}`, options);
  seen.page.setDefaultTimeout(PATIENCE);
  try {
    await use(seen);
    if (options.isClean !== false) none(seen.faults);
  } catch (error) {
    if (process.env.CONSOLE_SCREENSHOT) await seen.page.screenshot({ path: process.env.CONSOLE_SCREENSHOT });
    throw error;
  } finally {
    await seen.context.close();
  }
}

async function fixture(settings, use) {
  const server = await new FixtureServer(settings).start();
  try {
    await use(server);
  } finally {
    await server.stop().catch(() => undefined);
  }
}

const text = (page, what) => page.locator(what).first().innerText();
const says = (page, words) => page.getByText(words).first().waitFor();
const failed = /Failed to load resource/;

/** That a page breaks no rule; the first line of the error has the rules that it broke. */
const none = (faults) => assert.ok(faults.length === 0, faults.join('; '));

/** The findings of axe, each with the first element that it is about. */
async function inspect(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  none(violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes[0].html} ${nodes[0].failureSummary.replaceAll(/\s+/g, ' ')}`));
}

/** What holds for every page: no finding of axe, nothing wider than the window, a heading, a title. */
async function isSound(page) {
  await page.waitForFunction(() => document.querySelector('main h1') && !document.querySelector('.wait'));
  await page.waitForFunction(() => [...document.querySelectorAll('.chart .plot')].every((plot) => plot.querySelector('canvas')));
  const { wide, inner, headings } = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    inner: document.documentElement.clientWidth,
    headings: document.querySelectorAll('h1').length,
  }));
  assert.ok(wide <= inner, `the page is ${wide} pixels wide in a window of ${inner}`);
  assert.equal(headings, 1);
  assert.match(await page.title(), /shardd/);
  await inspect(page);
}

async function press(page, key, until, most = 60) {
  for (let times = 0; times < most; times += 1) {
    await page.keyboard.press(key);
    if (await page.evaluate(until)) return;
  }
  assert.fail(`${most} times ${key}, and not there`);
}

/** Stops the clock of a page that has one: its timers run only as a test turns it. */
const stop = async (page) => page.clock.pauseAt((await page.evaluate(() => Date.now())) + 1000);

/** Turns the clock of a page, and lets requests of each second have their answers. */
async function turn(page, seconds) {
  for (let second = 0; second < seconds; second += 1) {
    await page.clock.runFor(1000);
    await page.evaluate(async () => (await fetch('./v1/health', { cache: 'no-store' })).text());
  }
}

/** Until the page follows the events. */
async function followed(server, page) {
  const until = Date.now() + PATIENCE;
  while (server.followers.size === 0 && Date.now() < until) await page.waitForTimeout(50);
}

/** The requests from one on that are not of `turn`. */
const since = (server, from) => server.requests.slice(from).filter(({ path }) => path !== '/v1/health');

const focused = (page) => page.evaluate(() => (document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent ?? '').trim());

// --- every page ------------------------------------------------------------------------------------------------------

const HOSTILE_HASH = `#/datasets/${encodeURIComponent(HOSTILE)}`;
/** The page that compares a version of a dataset with the first one. */
const since0 = (scenario, name) => `#/datasets/${encodeURIComponent(name)}?view=versions&with=${new Datasets(scenario).named(name).commits[0].version}`;
const PAGES = {
  healthy: [
    '#/', '#/datasets', '#/datasets/flowers', '#/datasets/flowers?view=columns', '#/datasets/flowers?view=labels', '#/datasets/flowers?view=shards', '#/datasets/flowers?view=versions', '#/datasets/flowers?order=epoch', '#/datasets/flowers?view=plan', since0('healthy', 'flowers'), '#/datasets/flowers?view=partitions', '#/datasets/flowers?view=partitions&epoch=3',
    '#/datasets/tinyshakespeare', '#/datasets/speech-commands', '#/datasets/digits', '#/datasets/dialogues', '#/datasets/empty', '#/datasets/digits/samples/5', '#/datasets/dialogues/samples/1', '#/datasets/flowers/samples/7',
    `#/runs/vit-b16?step=${SPIKE}&with=vit-b16-lr3`, '#/runs/vit-b16?step=7',
  ],
  trouble: ['#/', '#/nodes', '#/nodes/n2', '#/shards', `#/shards/${'ab'.repeat(32)}`, '#/shards?kind=grains&by=latency&node=n1', '#/runs', '#/runs/vit-b16', '#/nowhere'],
  idle: ['#/', '#/runs/warm-up', '#/runs/vit-b16-lr3', '#/shards'],
  lost: ['#/', '#/nodes/n4', '#/nodes/n2', '#/runs/vit-b16'],
  large: ['#/', '#/nodes?order=disk', '#/shards?limit=1000', '#/runs', '#/datasets', '#/datasets/web-pairs', '#/datasets/web-pairs?view=shards', '#/datasets/web-pairs?view=labels', '#/datasets/web-pairs/samples/399999999', since0('large', 'web-pairs'), '#/datasets/web-pairs?view=partitions&first=64'],
  hostile: ['#/', '#/nodes', `#/nodes/${encodeURIComponent('"><svg onload=window.__owned=1> ../../v1/%2e%2e?#')}`, '#/runs', '#/shards', '#/shards/%22%3E%3Csvg%20onload%3Dwindow.__owned%3D1%3E', '#/datasets', HOSTILE_HASH, ...['columns', 'labels', 'shards', 'versions'].map((view) => `${HOSTILE_HASH}?view=${view}`), `${HOSTILE_HASH}?order=epoch`, since0('hostile', HOSTILE), `${HOSTILE_HASH}?view=plan`, `${HOSTILE_HASH}?view=partitions`, `${HOSTILE_HASH}/samples/1`, ...['', '?step=7'].map((step) => `#/runs/${encodeURIComponent(new Cluster('hostile').listed[0].id)}${step}`)],
};

if (node === undefined) {
  for (const [scenario, pages] of Object.entries(PAGES)) {
    for (const hash of pages) {
      for (const [width, size] of Object.entries(SIZES)) {
        for (const dark of process.env.SHARDD_LOOKS === 'two' ? [width === '390'] : [false, true]) {
          const name = hash.length > 60 ? `${hash.slice(0, 30)}…${hash.slice(-25)}` : hash;
          test(`page ${scenario} ${name} ${width} ${dark ? 'dark' : 'light'}`, () =>
            fixture({ scenario }, (server) =>
              // The newest placement of a run without one, and the status of an unknown node, are answered with 404 or 503.
              visit(server, hash, { size, dark, forgives: scenario === 'idle' || scenario === 'lost' ? [failed] : [] }, async ({ page }) => {
                await isSound(page);
                assert.equal(await page.evaluate(() => window.__owned), undefined);
              }),
            ));
        }
      }
    }
  }
}

test('the checks of these tests find faults', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '', { isClean: false }, async ({ page, faults }) => {
      await isSound(page);
      await page.evaluate(() => {
        const image = document.querySelector('main').appendChild(document.createElement('img'));
        image.src = 'data:,';
        document.querySelector('main').insertAdjacentHTML('beforeend', '<b style="color: red" onclick="1">inline</b><i></i>');
        void fetch('http://127.0.0.2:9/').catch(() => undefined);
      });
      await assert.rejects(inspect(page), /image-alt/);
      const until = Date.now() + PATIENCE;
      while (faults.length < 4 && Date.now() < until) await page.waitForTimeout(100);
      for (const what of [/breaks its policy: style-src-attr/, /breaks its policy: script-src-attr/, /breaks its policy: connect-src/]) assert.ok(faults.some((fault) => what.test(fault)), `${what} in ${faults.join('; ')}`);
    }),
  );
});

test('the first screen has the verdict and each cause, at both widths, without a click', async () => {
  await fixture({ scenario: 'trouble' }, async (server) => {
    for (const size of [WIDE, PHONE]) {
      await visit(server, '', { size }, async ({ page }) => {
        await page.locator('.finding').nth(3).waitFor();
        const verdict = await text(page, 'h1');
        assert.match(verdict.replaceAll('\u00a0', ' '), /^Training waits for its disk 41 % of the time, rank 3 on n2, since \d\d:\d\d; epoch 5 done in \d+ min \(\d+ to \d+\)\.$/);
        const boxes = await page.evaluate(() =>
          ['h1', '.finding:nth-child(1)', '.finding:nth-child(2)', '.finding:nth-child(3)', '.finding:nth-child(4)'].map((what) =>
            [...document.querySelectorAll(what === 'h1' ? what : `${what} h3, ${what} .cause, ${what} .remedy`)].map((one) => {
              const { top, left, bottom, right, height } = one.getBoundingClientRect();
              return { top, left, bottom, right, height };
            }),
          ),
        );
        for (const box of boxes.flat()) {
          assert.ok(box.height > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= size.height && box.right <= size.width, `${JSON.stringify(box)} is outside of ${size.width}x${size.height}`);
        }
        const causes = await page.locator('.cause').allInnerTexts();
        assert.match(causes[0], /12 grains in its cache did not match/);
        assert.match(causes[1], /1\.9 GiB of 100\.0 GiB are free/);
        assert.match(causes[2], /Rank 3 \(node n2\) waits for data 41 % of its time/);
        // Each severity is a word and a shape besides its colour.
        assert.deepEqual(await page.locator('.severity').allInnerTexts(), ['Critical', 'Critical', 'Warning', 'Warning']);
        assert.equal(await page.locator('.finding .mark').count(), 4);
      });
    }
  });
});

test('an overview that leaves out runs and findings counts them', async () => {
  await fixture({ scenario: 'trouble' }, async (server) => {
    const { cluster } = server;
    cluster.findings = Array.from({ length: 230 }, (_, at) => ({ ...cluster.findings[at % cluster.findings.length], node: `m${at}` }));
    cluster.runs = Array.from({ length: 61 }, (_, at) => (at === 0 ? cluster.runs[0] : { ...cluster.runs[0], id: `run-${at}` }));
    await visit(server, '', {}, async ({ page }) => {
      await says(page, 'The node lists the worst 100 of 230 findings.');
      await says(page, 'Runs (61)');
      await page.getByRole('button', { name: 'Show the worst 100' }).click();
      assert.equal(await page.locator('.finding').count(), 100);
      await page.getByRole('button', { name: 'Show the 50 runs that wait most' }).click();
      await says(page, 'The node lists the 50 runs that wait most.');
    });
  });
});

test('numbers change, and nothing moves', async () => {
  await fixture({ scenario: 'trouble' }, (server) =>
    visit(server, '', { hasClock: true }, async ({ page }) => {
      await isSound(page);
      await page.evaluate(() => {
        window.__moved = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((entry) => (window.__moved += entry.value))).observe({ type: 'layout-shift' });
      });
      const asked = () => server.requests.filter(({ path }) => path === '/v1/overview').length;
      const before = asked();
      await stop(page);
      await turn(page, 20);
      assert.ok(asked() >= before + 4 && asked() <= before + 12, `the page asks for the overview every two seconds, and asked ${asked() - before} times in 20`);
      assert.ok((await page.evaluate(() => window.__moved)) < 0.01, `moved by ${await page.evaluate(() => window.__moved)}`);
    }),
  );
});

test('a hidden page asks for nothing, and asks at once when it is seen', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '', { hasClock: true }, async ({ page }) => {
      await isSound(page);
      const hide = (hidden) =>
        page.evaluate((is) => {
          Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
          document.dispatchEvent(new Event('visibilitychange'));
        }, hidden);
      await stop(page);
      await hide(true);
      await turn(page, 1);
      const before = server.requests.length;
      await turn(page, 20);
      assert.deepEqual(since(server, before), []);
      const asks = page.waitForRequest(/\/v1\/overview$/);
      await hide(false);
      await page.clock.runFor(100);
      await asks;
    }),
  );
});

// --- text from elsewhere ---------------------------------------------------------------------------------------------

test('hostile names and values are text on every page', async () => {
  await fixture({ scenario: 'hostile' }, (server) =>
    visit(server, '', {}, async ({ page }) => {
      await page.locator('.finding').nth(1).waitFor();
      const title = await text(page, '.finding h3');
      assert.ok(title.includes('<script>window.__owned = 1</script>'), title);
      assert.ok(title.includes('\\u{202e}') && title.includes('\\u{0}') && title.includes('\\r\\n') && title.includes('\\u{1b}'), title);
      assert.ok((await text(page, '.finding .cause')).length <= 600);
      assert.equal(await page.locator('main script, main img, main svg[onload], main a[href^="javascript"]').count(), 0);
      // A link leads to the node of that very name.
      await page.locator('.finding .meta a').first().click();
      await page.locator('main .fact').first().waitFor();
      assert.match(await text(page, 'h1'), /<svg onload=window.__owned=1>/);
      assert.equal(await page.evaluate(() => window.__owned), undefined);
      await page.goto(`${server.url}#/runs`);
      await page.locator('tbody tr').first().waitFor();
      const names = await page.locator('tbody th').allInnerTexts();
      assert.ok(names.some((name) => name.includes('javascript:window')) && names.every((name) => name.length <= 40));
      const all = await page.evaluate(() => document.body.innerText);
      // eslint-disable-next-line no-control-regex
      assert.ok(!/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/.test(all));
    }),
  );
});

// --- tokens ----------------------------------------------------------------------------------------------------------

const TOKENS = { shardd_admin: { role: 'admin' }, shardd_read: { role: 'read' }, shardd_some: { role: 'read', datasets: ['a'] } };

async function enter(page, token) {
  await page.getByLabel('Token', { exact: true }).fill(token);
  await page.getByRole('button', { name: 'Use the token' }).click();
}

test('a node that requires a token gets one, and a wrong one is refused with the reason', async () => {
  await fixture({ scenario: 'healthy', tokens: TOKENS }, (server) =>
    visit(server, '', { forgives: [failed], hasClock: true }, async ({ page }) => {
      await says(page, 'This node requires a token');
      const field = page.getByLabel('Token', { exact: true });
      assert.deepEqual(await field.evaluate((one) => [one.type, one.autocomplete]), ['password', 'off']);
      await inspect(page);
      await stop(page);
      const before = server.requests.length;
      await turn(page, 10);
      assert.deepEqual(since(server, before), [], 'without a token the page asks for nothing more');
      await page.clock.resume();
      await enter(page, 'shardd_wrong');
      await says(page, 'The node refused the token');
      await says(page, 'The token is not known: it was revoked, or is for another cluster');
      await enter(page, 'two words');
      await says(page, 'A token has letters, digits and signs');
      await enter(page, '  shardd_read\n');
      await says(page, /Training is not held up by data/);
      assert.equal(await page.locator('.token').count(), 0);
      const sent = server.requests.findLast(({ path }) => path.startsWith('/v1/'));
      assert.equal(sent.headers.authorization, 'Bearer shardd_read');
      // It is in this tab alone.
      const kept = await page.evaluate(() => [JSON.stringify(localStorage), sessionStorage.getItem('shardd.token'), document.cookie, location.href]);
      assert.deepEqual([kept[0].includes('shardd_read'), kept[1], kept[2], kept[3].includes('shardd_read')], [false, 'shardd_read', '', false]);
      assert.ok(server.requests.every(({ path }) => !path.includes('shardd_')));
      await page.getByRole('button', { name: 'Forget token' }).click();
      await says(page, 'This node requires a token');
      assert.equal(await page.evaluate(() => sessionStorage.getItem('shardd.token')), null);
    }),
  );
});

test('with a token the page fits a phone, and forgets it there', async () => {
  await fixture({ scenario: 'trouble', tokens: TOKENS }, (server) =>
    visit(server, '', { size: PHONE, forgives: [failed] }, async ({ page }) => {
      await enter(page, 'shardd_admin');
      await isSound(page);
      await page.goto(`${server.url}#/nodes/n2`);
      await isSound(page);
      await page.getByRole('button', { name: 'Forget token' }).click();
      await says(page, 'This node requires a token');
      await inspect(page);
    }),
  );
});

test('a token that ends while the page is open is asked for again, and the data stays', async () => {
  const tokens = structuredClone(TOKENS);
  await fixture({ scenario: 'trouble', tokens }, (server) =>
    visit(server, '', { forgives: [failed] }, async ({ page }) => {
      await enter(page, 'shardd_read');
      await says(page, /Training waits for its disk/);
      tokens.shardd_read.expired = true;
      await says(page, 'The node refused the token');
      await says(page, /Token shardd_read has expired/);
      assert.ok(await page.locator('.finding').first().isVisible());
      await inspect(page);
      await enter(page, 'shardd_admin');
      await page.locator('.token').waitFor({ state: 'detached' });
      for (let times = 0; times < 2; times += 1) await page.waitForResponse((response) => response.url().endsWith('/v1/overview') && response.status() === 200);
    }),
  );
});

test('a token without the right is answered with the missing right', async () => {
  await fixture({ scenario: 'healthy', tokens: TOKENS }, (server) =>
    visit(server, '', { forgives: [failed] }, async ({ page }) => {
      await enter(page, 'shardd_some');
      await says(page, 'The token has no right to see the overview.');
      await says(page, 'The token is for some datasets, this is about all');
    }),
  );
});

test('only an administrator sees actions', async () => {
  await fixture({ scenario: 'healthy', tokens: TOKENS }, (server) =>
    visit(server, '#/nodes/n1', { forgives: [failed], hasClock: true }, async ({ page }) => {
      await enter(page, 'shardd_read');
      await page.locator('main .fact').first().waitFor();
      await stop(page);
      await turn(page, 5);
      assert.equal(await page.locator('.actions').count(), 0);
      await page.clock.resume();
      await page.getByRole('button', { name: 'Forget token' }).click();
      await enter(page, 'shardd_admin');
      await page.getByRole('button', { name: 'Drain …' }).waitFor();
    }),
  );
});

// --- a node that dies ------------------------------------------------------------------------------------------------

test('a node that dies leaves its data with their age, and the page continues by itself', async () => {
  const server = await new FixtureServer({ scenario: 'trouble' }).start();
  try {
    await visit(server, '', { isClean: false, forgives: [/./] }, async ({ page, faults }) => {
      await page.locator('.finding').nth(3).waitFor();
      await server.stop();
      await page.locator('.away').waitFor();
      const banner = (await text(page, '.away')).replaceAll('\n', ' ');
      assert.match(banner, /Node n1 does not answer since \d\d:\d\d:\d\d\..*The page shows the state of \d\d:\d\d:\d\d\./);
      assert.equal(await page.locator('.finding').count(), 4);
      assert.match(await page.title(), /no answer/);
      await inspect(page);
      await server.start();
      await page.locator('.away').waitFor({ state: 'detached' });
      await says(page, 'The node answers again');
      await page.waitForFunction(() => !document.querySelector('.as-of.is-old'));
      await says(page, 'The node does not answer the console');
      none(faults);
      // Events come again.
      await followed(server, page);
      server.emit('node', 'n9');
      await says(page, 'Node n9 registered');
    });
  } finally {
    await server.stop().catch(() => undefined);
  }
});

test('the button of the banner asks at once', async () => {
  const server = await new FixtureServer({ scenario: 'healthy' }).start();
  try {
    await visit(server, '', { isClean: false, forgives: [/./], hasClock: true }, async ({ page }) => {
      const open = new Set();
      page.on('request', (request) => open.add(request));
      for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => open.delete(request));
      await says(page, /Training is not held up/);
      await server.stop();
      await page.locator('.away').waitFor();
      // By itself the page asks no more: its clock stands, and no request that could still find the node is under way.
      await stop(page);
      while (open.size > 0) await Promise.race(['requestfinished', 'requestfailed'].map((end) => page.waitForEvent(end)));
      await server.start();
      await page.getByRole('button', { name: 'Ask now' }).click();
      await page.locator('.away').waitFor({ state: 'detached' });
    });
  } finally {
    await server.stop().catch(() => undefined);
  }
});

// --- plans -----------------------------------------------------------------------------------------------------------

test('a plan is tried before it is made, and its mixing is seen epoch by epoch', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers?view=plan', {}, async ({ page }) => {
      await says(page, 'Make it: shardctl partition flowers --q 0.1');
      const fact = (name) => page.locator('.fact', { hasText: name }).locator('dd').first().innerText();
      assert.match(await fact('Sent after an epoch'), /10\s% of a full shuffle/);
      // Where nothing was exchanged yet, all grains are where they began.
      const picture = page.getByRole('img', { name: /^Of each partition/ });
      const shares = [];
      for (const epoch of ['0', '5']) {
        await page.getByRole('slider', { name: 'Epoch', exact: true }).fill(epoch);
        await says(page, `Mixing as epoch ${epoch} begins`);
        await page.waitForFunction(() => document.querySelector('[aria-busy=false] .mixing'));
        shares.push(Number(/: ([\d.]+)\s% are where they began/.exec(await picture.getAttribute('aria-label'))[1]));
      }
      assert.ok(shares[0] === 100 && shares[1] < 60, `${shares}`);
      const darkness = await picture.evaluate((canvas) => [...canvas.getContext('2d').getImageData(0, 0, 2, 1).data]);
      assert.ok(darkness[0] < darkness[4], `the diagonal is darker: ${darkness}`);

      await page.getByLabel('Q, or a schedule').fill('1,0.05');
      await page.getByLabel('Partitions').fill('8');
      await page.getByLabel('Milliseconds of a step').fill('40');
      await page.getByLabel('Placement at first').selectOption('random');
      await page.getByRole('button', { name: 'Simulate' }).click();
      await says(page, 'shardctl partition flowers --q 1,0.05 --partitions 8 --placement random');
      await page.waitForFunction(() => [...document.querySelectorAll('.fact dt')].some((one) => one.textContent === 'Hidden'));
      assert.match(await fact('Partitions'), /^8$/);

      await page.getByLabel('Nodes', { exact: true }).fill('many');
      await page.getByRole('button', { name: 'Simulate' }).click();
      await says(page, 'Nodes: enter a number from 1 to 4096.');
    }),
  );
});

test('a plan that cannot be says why, and the form stays', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers?view=plan&nodes=9&partitions=4', { isClean: false, forgives: [failed] }, async ({ page }) => {
      await says(page, '9 nodes cannot share 4 partitions: make the plan with 9 partitions or more');
      await page.getByLabel('Partitions').fill('16');
      await page.getByRole('button', { name: 'Simulate' }).click();
      await says(page, 'Make it: shardctl partition flowers --q 0.1 --partitions 16');
    }),
  );
});

// --- tables ----------------------------------------------------------------------------------------------------------

test('a table that is too wide can be scrolled by keyboard as soon as it has its rows', async () => {
  await fixture({ scenario: 'healthy' }, async (server) => {
    const { page, context } = await open(browser, 'about:blank', { size: PHONE });
    try {
      page.setDefaultTimeout(PATIENCE);
      // Observers are called a frame after a change, and until then a reader would meet a table without the keyboard.
      await page.addInitScript(() => {
        window.ResizeObserver = class {
          observe() {}
          disconnect() {}
        };
      });
      await page.goto(`${server.url}#/datasets/flowers/samples/7`);
      await page.getByRole('link', { name: 'Show the step' }).first().waitFor();
      const [wide, focusable] = await page.evaluate(() => {
        const all = [...document.querySelectorAll('.sideways')].filter((box) => box.scrollWidth > box.clientWidth + 1);
        return [all.length, all.filter((box) => box.tabIndex === 0).length];
      });
      assert.ok(wide > 0, 'a table is wide');
      assert.equal(focusable, wide);
    } finally {
      await context.close();
    }
  });
});

// --- trainings -------------------------------------------------------------------------------------------------------

test('from a spike of the loss to the samples that its ranks read', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const chart = page.getByRole('slider', { name: 'Loss: step of the training' });
      await page.waitForFunction(() => document.querySelectorAll('.plot.is-clickable canvas').length === 4);
      // Its point is the 169th, of 50 steps.
      await chart.focus();
      await page.keyboard.press('Home');
      for (let times = 0; times < 16; times += 1) await page.keyboard.press('PageDown');
      for (let times = 0; times < 8; times += 1) await page.keyboard.press('ArrowRight');
      assert.match(await chart.getAttribute('aria-valuetext'), /^step 8,400: vit-b16 0\.\d+, largest of a step/);
      await page.keyboard.press('Enter');
      await page.waitForFunction((step) => location.hash.endsWith(`?step=${step}`), SPIKE);
      const step = page.getByRole('region', { name: 'Step 8,437' });
      await step.locator('tbody a').first().waitFor();
      const losses = (await step.getByRole('table', { name: 'The step by virtual rank' }).locator('tbody td:nth-child(3)').allInnerTexts()).map(Number);
      assert.equal(losses.length, 16);
      assert.equal(losses.indexOf(Math.max(...losses)), 5, `the large loss is that of virtual rank 5: ${losses}`);
      // The samples of virtual rank 5 are those that the plan names.
      const own = await step.locator('tbody tr').nth(5).locator('td').last().locator('a').allInnerTexts();
      await step.getByRole('link', { name: 'Samples of rank 2' }).first().click();
      await page.locator('.card').first().waitFor();
      const cards = await page.locator('.card').evaluateAll((all) => all.map((card) => ({ text: card.textContent, sample: card.querySelector('h3 a').textContent.replace('Sample ', '') })));
      const shown = cards.filter(({ text: of }) => /virtual rank5/.test(of)).map(({ sample }) => sample);
      assert.ok(shown.length > 0 && shown.every((sample, at) => sample === own[at]), `${shown} and ${own}`);
    }),
  );
});

test('a click on a curve shows its step, and the steps beside it are links', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const plot = page.getByRole('slider', { name: 'Gradient norm: step of the training' });
      await plot.locator('canvas').waitFor();
      await plot.click();
      const region = page.getByRole('region', { name: /^Step / });
      await region.waitFor();
      const step = Number(new URLSearchParams((await page.evaluate(() => location.hash)).split('?')[1]).get('step'));
      assert.ok(step > 4000 && step < 8000, `the middle of the chart is step ${step}`);
      await page.getByRole('link', { name: 'Next step ›' }).click();
      await page.getByRole('region', { name: `Step ${(step + 1).toLocaleString('en')}` }).waitFor();
      const field = page.getByLabel('Step', { exact: true });
      await field.fill('12000');
      await field.press('Enter');
      await says(page, 'Enter a step from 0 to 11,999.');
      await field.fill('3');
      await field.press('Enter');
      await page.getByRole('region', { name: 'Step 3', exact: true }).waitFor();
    }),
  );
});

test('a run shows the memory of each launch and its checkpoints', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const launches = page.getByRole('table', { name: 'Launches' });
      await launches.waitFor();
      const memory = (await launches.locator('tbody tr').evaluateAll((all) => all.map((row) => row.lastElementChild.textContent)));
      assert.deepEqual(memory.map((text) => text.replace(/\s/, ' ')), ['3.5 GiB', '2.5 GiB', '–'], 'of the first launch it is not known');
      const checkpoints = page.getByRole('table', { name: 'Checkpoints: the last 100 of 120' });
      const first = await checkpoints.locator('tbody tr').first().evaluate((row) => [...row.children].map((cell) => cell.textContent.replace(/\s/, ' ')));
      assert.deepEqual([first[0], ...first.slice(2)], ['12,000', '3.0 MiB', '1.0 MiB', '1 s']);
    }),
  );
});

test('a step lists the samples with the largest loss, each with a link, or the command that saves them', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16?step=8437', {}, async ({ page }) => {
      const table = page.getByRole('table', { name: 'Samples by loss' });
      await table.waitFor();
      const rows = await table.locator('tbody tr').evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
      assert.equal(rows[0][1], 'not a number', 'the loss that is none comes first');
      const [losses, ranks] = [1, 2].map((at) => rows.slice(1).map((row) => Number(row[at])));
      assert.deepEqual(losses, [...losses].sort((one, other) => other - one));
      assert.deepEqual(ranks.slice(0, 3), [5, 5, 5], 'virtual rank 5 has the large loss');
      const first = table.locator('tbody a').first();
      const sample = (await first.innerText()).replaceAll(',', '');
      assert.ok((await first.getAttribute('href')).includes(`/samples/${sample}?version=`));
      // Without saved losses there is the command for them.
      await page.getByRole('link', { name: 'Next step ›' }).click();
      const region = page.getByRole('region', { name: 'Step 8,438' });
      await region.locator('.command').waitFor();
      const id = server.trainings.records('vit-b16')[0].id.slice(0, 12);
      const command = `shardtrain rerun ${id} --sample-losses 8438 --save --record s3://flowers/shardd --server ${server.url.replace(/\/$/, '')}`;
      assert.equal(await region.locator('.command').innerText(), command);
    }),
  );
});

test('a run names the data that its training read, and the commands for documents about it', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const table = page.getByRole('table', { name: 'Versions that the training read' });
      await table.waitFor();
      const { samples, name } = server.trainings.of;
      const whole = samples.toLocaleString('en');
      const row = await table.locator('tbody tr').first().innerText();
      assert.ok(row.includes(name) && row.includes(`${whole} of ${whole}`) && row.includes(`${whole} images`), row);
      const epochs = page.getByRole('table', { name: 'Samples read by epoch' });
      assert.equal(await epochs.locator('tbody tr').first().innerText().then((text) => text.split(/\s+/)[1]), whole);
      await page.getByText('Licences, sources and documents').click();
      const commands = await page.locator('.command').allInnerTexts();
      assert.equal(commands.length, 4);
      const id = server.trainings.records('vit-b16')[0].id.slice(0, 12);
      for (const [at, more] of ['--write-about about.toml', '--format eu-template', '--format croissant', '--roots'].entries()) {
        assert.ok(commands[at].startsWith(`shardctl --server ${server.url.replace(/\/$/, '')} runs summary ${id} --record s3://flowers/shardd`) && commands[at].includes(more), commands[at]);
      }
    }),
  );
});

test('a run is compared with another, and with its own earlier record', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const legend = page.locator('.chart', { hasText: 'Loss' }).first().locator('tbody th');
      await page.getByLabel('Compare with run').fill('vit-b16-lr3');
      await page.getByRole('button', { name: 'Compare' }).click();
      await page.waitForFunction(() => document.querySelector('.chart .plot.is-clickable')?.parentElement.querySelectorAll('tbody tr').length === 3);
      assert.deepEqual((await legend.allInnerTexts()).map((of) => of.trim()), ['vit-b16', 'largest of a step', 'vit-b16-lr3']);
      await page.getByLabel('Compare with run').fill('absent');
      await page.getByRole('button', { name: 'Compare' }).click();
      await says(page, 'The store has no record of run absent.');
      await page.getByLabel('Record').selectOption({ index: 1 });
      await says(page, '2,000 of 24,000');
      await says(page, 'stopped');
    }),
  );
});

test('another record of a run has its own curves and data, or says why it has none', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    server.trainings.lost = server.trainings.records('vit-b16')[1].id;
    return visit(server, '#/runs/vit-b16?step=60', { isClean: false }, async ({ page }) => {
      const table = page.getByRole('table', { name: 'Versions that the training read' });
      await table.waitFor();
      const epochs = page.locator('.fact', { hasText: /^Epochs/ }).locator('dd');
      const before = await epochs.innerText();
      await page.getByLabel('Record').selectOption({ index: 1 });
      await says(page, 'Not found: the data of this training.');
      assert.equal(await table.count(), 0, 'the data of the first record is not shown for the second');
      server.trainings.lost = undefined;
      await page.reload();
      await table.waitFor();
      assert.notEqual(await epochs.innerText(), before);
      await page.waitForFunction(() => /2,000 steps/.test(document.querySelector('.note')?.textContent ?? ''));
    });
  });
});

test('a step before the listed ones has its saved losses, or the command', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    server.trainings.hasEarly = true;
    return visit(server, `#/runs/vit-b16?step=${EARLY}`, { isClean: false }, async ({ page }) => {
      await page.getByRole('table', { name: 'Samples by loss' }).waitFor();
      await page.getByRole('link', { name: 'Next step ›' }).click();
      await page.getByRole('region', { name: `Step ${EARLY + 1}` }).locator('.command').waitFor();
    });
  });
});

test('the curves and the step of a training that is underway stay while it publishes another record', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16?step=8437', { isClean: false, hasClock: true }, async ({ page }) => {
      const step = page.getByRole('region', { name: 'Step 8,437' });
      await step.locator('tbody tr').first().waitFor();
      await page.waitForFunction(() => document.querySelectorAll('.plot.is-clickable canvas').length === 4);
      await page.evaluate(() => {
        window.__chart = document.querySelector('.plot.is-clickable canvas');
        window.__gaps = 0;
        new MutationObserver(() => {
          if (!document.querySelector('.plot.is-clickable canvas') || !document.querySelector('[aria-label="Step 8,437"] tbody tr')) window.__gaps += 1;
        }).observe(document.body, { childList: true, subtree: true });
      });
      server.trainings.published += 1;
      const asked = page.waitForResponse((response) => /\/records\/[0-9a-f]+\/steps\?/.test(response.url()) && response.ok());
      await page.clock.runFor(16_000);
      await asked;
      await turn(page, 1);
      assert.deepEqual(await page.evaluate(() => [window.__gaps, window.__chart.isConnected]), [0, true]);
    }),
  );
});

test('a loss that is no number says so, and its curve has a gap', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    server.trainings.bad = 500;
    return visit(server, '#/runs/vit-b16?step=500', {}, async ({ page }) => {
      const step = page.getByRole('region', { name: 'Step 500' });
      await step.locator('tbody tr').first().waitFor();
      assert.equal(await step.locator('.fact', { hasText: 'Loss' }).locator('dd').first().innerText(), 'not a number');
      assert.equal(await step.locator('tbody tr').nth(5).locator('td').nth(1).innerText(), 'not a number');
    });
  });
});

test('who sends to whom is a table, beside what the plan lets expect', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const table = page.getByRole('table', { name: 'Bytes by sender and receiver' });
      await table.waitFor();
      assert.deepEqual(await table.locator('thead th').allInnerTexts(), ['From', 'to n1', 'to n2', 'to n3', 'to n4', 'All']);
      const cells = await table.locator('tbody tr').first().locator('td').allInnerTexts();
      assert.equal(cells[0], '–');
      assert.match(cells[1], /^2\.\d\sGiB\n+2\.7\sGiB$/);
      await page.getByRole('radio', { name: 'On request' }).check({ force: true });
      await page.waitForFunction(() => [...document.querySelectorAll('.pair')].some((one) => one.textContent.includes('MiB')));
    }),
  );
});

/** A page that takes traces as Perfetto does: it answers PING once it is ready, and keeps what it gets. */
const TAKER = `<!doctype html><title>taker</title><script>
  window.got = [];
  let asked = 0;
  addEventListener('message', (event) => {
    window.got.push({ origin: event.origin, data: event.data === 'PING' ? 'PING' : { ...event.data.perfetto, buffer: new TextDecoder().decode(event.data.perfetto.buffer) } });
    if (event.data === 'PING' && (asked += 1) === 3) event.source.postMessage('PONG', event.origin);
  });
</script>`;

test('the timeline of a run goes to Perfetto in its own window, with the token of the page', async () => {
  await fixture({ scenario: 'trouble', tokens: TOKENS }, (server) =>
    visit(server, '#/runs/vit-b16', { forgives: [failed] }, async ({ page, context }) => {
      const elsewhere = [];
      await context.route('https://ui.perfetto.dev/**', (route) => {
        elsewhere.push(route.request().headers().referer);
        return route.fulfill({ contentType: 'text/html', body: TAKER });
      });
      await enter(page, 'shardd_admin');
      const opens = context.waitForEvent('page');
      await page.getByRole('button', { name: 'Open in Perfetto' }).click();
      const taker = await opens;
      await says(page, 'Perfetto has the trace');
      const got = await taker.evaluate(() => window.got);
      const { origin } = new URL(server.url);
      assert.ok(got.every((one) => one.origin === origin));
      assert.deepEqual(got.slice(0, -1).map(({ data }) => data), ['PING', 'PING', 'PING']);
      const { buffer, title, fileName } = got.at(-1).data;
      assert.deepEqual([title, fileName], ['shardd run vit-b16', 'vit-b16.trace.json']);
      const trace = JSON.parse(buffer);
      assert.ok(trace.traceEvents.some(({ args }) => args.name === 'node n1') && trace.traceEvents.some(({ ph }) => ph === 'C'));
      assert.deepEqual(elsewhere, [undefined], 'one request of the other window, which does not say from where');
      const asked = server.requests.filter(({ path }) => path.includes('/trace'));
      assert.deepEqual(asked.map(({ path, headers }) => [path, headers.authorization]), [['/v1/runs/vit-b16/trace?limit=64', 'Bearer shardd_admin']]);
    }),
  );
});

test('the trace of a run is a file, without internet', async () => {
  await fixture({ scenario: 'trouble' }, (server) =>
    visit(server, '#/runs/vit-b16', {}, async ({ page }) => {
      const saved = page.waitForEvent('download');
      await page.getByRole('button', { name: 'Download trace' }).click();
      const file = await saved;
      assert.equal(file.suggestedFilename(), 'vit-b16.trace.json');
      const trace = JSON.parse(await readFile(await file.path(), 'utf8'));
      assert.deepEqual([trace.displayTimeUnit, trace.otherData.run, trace.otherData.nodes.length], ['ms', 'vit-b16', 4]);
      await says(page, 'The trace has');
      // A window that the browser blocks is said, and nothing is asked for.
      await page.evaluate(() => { window.open = () => null; });
      await page.getByRole('button', { name: 'Open in Perfetto' }).click();
      await says(page, 'The browser blocked the window');
      assert.equal(server.requests.filter(({ path }) => path.includes('/trace')).length, 1);
    }),
  );
});

test('a run without a record says how to write one', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs/tinyshakespeare', { isClean: false }, ({ page }) => says(page, 'The store has no record of this run.')));
});

// --- events ----------------------------------------------------------------------------------------------------------

test('an event is a line of the journal, and an early answer', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/runs', { hasClock: true }, async ({ page }) => {
      await page.locator('tbody tr').first().waitFor();
      await followed(server, page);
      const listed = page.waitForRequest(/\/v1\/runs\?/);
      await page.clock.runFor(6000);
      await listed;
      await stop(page);
      server.cluster.listed.push({ ...server.cluster.listed[0], id: 'brand-new', state: 'created' });
      server.emit('run', 'brand-new');
      // Between two requests are five seconds; a change brings the next one forward.
      await turn(page, 3);
      await says(page, 'brand-new');
      await page.clock.resume();
      await page.goto(`${server.url}#/`);
      await says(page, 'Run brand-new changed');
    }),
  );
});

test('a stream that ends continues after the last event, and misses nothing', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '', {}, async ({ page }) => {
      await says(page, /Training is not held up/);
      await followed(server, page);
      server.emit('tag', 'digits/v1');
      await says(page, 'Tag digits/v1 was set');
      for (const follower of server.followers) follower.end();
      server.followers.clear();
      server.emit('tag', 'digits/v2');
      await says(page, 'Tag digits/v2 was set');
      const last = server.requests.filter(({ path }) => path === '/v1/events').at(-1);
      assert.equal(last.headers['last-event-id'], '101');
      // After `lagged` the page lists again, and follows from then on.
      await followed(server, page);
      server.interrupt('lagged');
      await says(page, 'Some changes before this line are missing');
      await followed(server, page);
      const again = server.requests.filter(({ path }) => path === '/v1/events').at(-1);
      assert.equal(again.headers['last-event-id'], undefined);
      server.emit('tag', 'digits/v3');
      await says(page, 'Tag digits/v3 was set');
    }),
  );
});

// --- actions ---------------------------------------------------------------------------------------------------------

test('a node is drained and hosts again, by keyboard alone, after a question', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/nodes/n2', {}, async ({ page }) => {
      await page.getByRole('button', { name: 'Drain …' }).waitFor();
      // The first key leads past the navigation.
      await page.keyboard.press('Tab');
      assert.equal(await focused(page), 'Skip to the content');
      await page.keyboard.press('Enter');
      assert.equal(await page.evaluate(() => [document.activeElement.id, location.hash].join(' ')), 'main #/nodes/n2');
      await press(page, 'Tab', () => document.activeElement?.textContent === 'Drain …');
      await page.keyboard.press('Enter');
      const dialog = page.getByRole('dialog', { name: 'Drain node n2?' });
      await dialog.waitFor();
      assert.match(await dialog.innerText(), /Its 12 partitions move to other nodes, a few at a time/);
      await inspect(page);
      // The focus stays inside, in both directions.
      for (const key of ['Tab', 'Tab', 'Tab', 'Shift+Tab', 'Shift+Tab', 'Shift+Tab']) {
        await page.keyboard.press(key);
        assert.ok(await page.evaluate(() => document.activeElement?.closest('dialog') !== null));
      }
      await page.keyboard.press('Escape');
      await dialog.waitFor({ state: 'detached' });
      assert.equal(await focused(page), 'Drain …');
      assert.deepEqual(server.actions, []);
      await page.keyboard.press('Enter');
      await dialog.waitFor();
      await press(page, 'Tab', () => document.activeElement?.textContent === 'Drain', 5);
      await page.keyboard.press('Enter');
      await says(page, 'Node n2 drains');
      await page.getByRole('button', { name: 'End the drain …' }).waitFor();
      assert.deepEqual(server.actions, [{ method: 'PUT', path: '/v1/nodes/n2/drain', body: { leave: false } }]);
      await page.getByRole('button', { name: 'End the drain …' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'End the drain' }).click();
      await says(page, 'Node n2 may host again');
      assert.deepEqual(server.actions.at(-1), { method: 'DELETE', path: '/v1/nodes/n2/drain', body: undefined });
    }),
  );
});

test('the exchange of a node is paused, resumed and limited', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/nodes/n3', {}, async ({ page }) => {
      await page.getByRole('button', { name: 'Pause the exchange …' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
      await page.getByRole('button', { name: 'Resume the exchange …' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
      await page.getByRole('button', { name: 'Exchange rate …' }).click();
      const dialog = page.getByRole('dialog', { name: 'Exchange rate of node n3' });
      await inspect(page);
      await dialog.getByLabel('MiB per second').fill('0');
      await dialog.getByRole('button', { name: 'Set the rate' }).click();
      await dialog.getByText('Enter a whole number of MiB per second').waitFor();
      await dialog.getByLabel('MiB per second').fill('75');
      await dialog.getByRole('button', { name: 'Set the rate' }).click();
      await says(page, 'The exchange rate of node n3 is 75MiB');
      assert.deepEqual(server.actions.map(({ body }) => body), [{ node: 'n3', paused: true }, { node: 'n3', paused: false }, { node: 'n3', rate: '75MiB' }]);
      await page.getByText('75MiB', { exact: true }).first().waitFor();
    }),
  );
});

test('a lost node is removed once its name is typed', async () => {
  await fixture({ scenario: 'lost' }, (server) =>
    visit(server, '#/nodes/n4', { forgives: [failed] }, async ({ page }) => {
      await page.getByRole('button', { name: 'Remove …' }).click();
      const dialog = page.getByRole('dialog', { name: 'Remove node n4?' });
      const button = dialog.getByRole('button', { name: 'Remove the node' });
      assert.match(await dialog.innerText(), /You cannot undo it/);
      assert.ok(await button.isDisabled());
      await dialog.getByRole('textbox').fill('n');
      await page.keyboard.press('Enter');
      assert.deepEqual(server.actions, []);
      await dialog.getByRole('textbox').fill('n4');
      await inspect(page);
      await button.click();
      await dialog.waitFor({ state: 'detached' });
      assert.deepEqual(server.actions, [{ method: 'DELETE', path: '/v1/certificates/n4', body: undefined }]);
      await says(page, 'The cluster has no node of this name');
    }),
  );
});

test('an action that the node refuses says why, and stays open', async () => {
  const tokens = structuredClone(TOKENS);
  await fixture({ scenario: 'healthy', tokens }, (server) =>
    visit(server, '#/nodes/n1', { forgives: [failed] }, async ({ page }) => {
      await enter(page, 'shardd_admin');
      await page.getByRole('button', { name: 'Drain …' }).click();
      tokens.shardd_admin.role = 'read';
      await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
      await says(page, 'The token lacks the right: this needs a token of role admin; this one has role read');
      assert.ok(await page.getByRole('dialog').isVisible());
    }),
  );
});

// --- many ------------------------------------------------------------------------------------------------------------

test('a list of 1,000 nodes has the rows in view, in few bytes, at each place', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/nodes', {}, async ({ page }) => {
      await page.getByText('node-0000').first().waitFor();
      assert.equal(await page.locator('.total').innerText(), '1,000 nodes');
      const rows = () => page.locator('.long tbody tr:not(.space)').count();
      assert.ok((await rows()) < 60, `${await rows()} rows`);
      const of = (from) => server.requests.slice(from).filter(({ path }) => path.startsWith('/v1/cluster/nodes'));
      const first = of(0).reduce((sum, { bytes }) => sum + bytes, 0) / of(0).length;
      assert.ok(first < 40_000, `${first} bytes`);
      const from = server.requests.length;
      const offsets = () => new Set(of(from).map(({ path }) => path));
      await page.locator('.long').evaluate((box) => box.scrollTo(0, box.scrollHeight));
      await page.getByText('node-0999').first().waitFor();
      await page.locator('.long').evaluate((box) => box.scrollTo(0, box.scrollHeight / 2));
      await page.getByText('node-0500').first().waitFor();
      assert.ok((await rows()) < 60, `${await rows()} rows`);
      assert.ok(offsets().size <= 6, [...offsets()].join(' '));
      assert.ok(of(from).every(({ path }) => /limit=50$/.test(path)));
      const [position, count] = await page.locator('.long').evaluate((box) => [box.querySelector('tr[aria-rowindex]').ariaRowIndex, box.querySelector('table').ariaRowCount]);
      assert.ok(Number(position) > 400 && count === '1001');
      // Search and order are the server's.
      await page.getByLabel('Search').fill('node-07');
      await says(page, '100 nodes with “node-07”');
      await page.getByRole('button', { name: 'Disk free' }).click();
      await page.locator('th[aria-sort="descending"]').waitFor();
      assert.match(server.requests.filter(({ path }) => path.startsWith('/v1/cluster/nodes')).at(-1).path, /order=disk&search=node-07&offset=0/);
      await page.getByLabel('Search').fill('zzz');
      await says(page, 'No node has “zzz” in its name.');
      // Back to the whole list, and into a node by keyboard.
      await page.getByLabel('Search').fill('');
      await says(page, '1,000 nodes');
      await page.locator('.long').focus();
      await press(page, 'Tab', () => /^node-\d+$/.test(document.activeElement?.textContent ?? ''));
      await page.keyboard.press('Enter');
      await page.locator('h1', { hasText: 'Node node-' }).waitFor();
      await page.waitForFunction(() => document.activeElement?.tagName === 'H1');
    }),
  );
});

test('a page of 1,000 nodes keeps small: memory, elements, bytes per minute', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '', { hasClock: true }, async ({ page }) => {
      await isSound(page);
      assert.ok((await page.locator('.finding').count()) <= 6);
      await stop(page);
      const from = server.requests.length;
      await turn(page, 60);
      const perSecond = server.requests.slice(from).reduce((sum, one) => sum + one.bytes, 0) / 60;
      assert.ok(perSecond > 1000 && perSecond < 60_000, `${perSecond} bytes per second`);
      await page.clock.resume();
      const elements = await page.evaluate(() => document.querySelectorAll('*').length);
      assert.ok(elements < 3000, `${elements} elements`);
      await page.goto(`${server.url}#/shards?limit=1000`);
      await page.locator('.long tbody th').first().waitFor();
      assert.ok((await page.locator('.long tbody tr').count()) < 60);
      const session = await page.context().newCDPSession(page);
      await session.send('HeapProfiler.collectGarbage');
      const { usedSize } = await session.send('Runtime.getHeapUsage');
      assert.ok(usedSize < 30e6, `${usedSize} bytes of heap`);
    }),
  );
});

test('a list of shards is ordered as asked, of the cluster or of one node', async () => {
  await fixture({ scenario: 'trouble' }, (server) =>
    visit(server, '#/shards', {}, async ({ page }) => {
      await page.locator('.long tbody th').first().waitFor();
      await page.getByLabel('Wait for a miss').check({ force: true });
      await says(page, 'The 50 shards with the longest misses, over all nodes');
      await page.getByLabel('Grains').check({ force: true });
      await says(page, /The 50 grains/);
      await page.getByLabel('Node', { exact: true }).fill('n3');
      await page.keyboard.press('Enter');
      await says(page, /at node n3/);
      assert.match(await page.evaluate(() => location.hash), /^#\/shards\?by=latency&node=n3&kind=grains$/);
      assert.ok(server.requests.some(({ path }) => path === '/v1/nodes/n3/hot?by=latency&limit=50'));
      await page.locator('.long tbody th a').first().click();
      await says(page, /Runs that read it/);
      await says(page, /\d+ of 64/);
      assert.match(await page.evaluate(() => location.hash), /^#\/shards\/[0-9a-f]{64}$/);
    }),
  );
});

// --- datasets --------------------------------------------------------------------------------------------------------

test('a dataset is found, and its samples are pictures that load near the view', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets', {}, async ({ page }) => {
      await page.getByRole('link', { name: 'flowers' }).click();
      await page.locator('.card img').first().waitFor();
      await page.waitForFunction(() => [...document.querySelectorAll('.card img')].every((image) => image.complete && image.naturalWidth > 0 && image.src.startsWith('blob:') && image.alt.startsWith('image of sample')));
      assert.equal(await page.locator('.card').count(), 12);
      assert.match(await text(page, '.card'), /daisy \(0\)/);
      await says(page, 'Samples 0 to 11 of 3,670');
      // A question for a whole page of samples, and one for each picture in view.
      const asked = server.requests.filter(({ path }) => /samples\?/.test(path));
      assert.deepEqual(asked.map(({ path }) => path.split('?')[1]), ['from=0&limit=12']);
      const media = () => server.requests.filter(({ path }) => /samples\/\d+\/image$/.test(path)).length;
      assert.ok(media() <= 12);
      await page.getByRole('link', { name: 'Next ›' }).click();
      await says(page, 'Samples 12 to 23 of 3,670');
      await page.getByLabel('Go to sample').fill('3,669');
      await page.keyboard.press('Enter');
      await says(page, 'Samples 3,669 to 3,669 of 3,670');
      await page.getByLabel('Go to sample').fill('3670');
      await page.keyboard.press('Enter');
      await says(page, 'Enter a number from 0 to 3,669.');
      // What a version has never changes: no answer is asked for twice.
      const paths = server.requests.map(({ path }) => path).filter((path) => path.startsWith('/v1/versions/'));
      assert.equal(new Set(paths).size, paths.length);
    }),
  );
});

test('pictures outside of the window are not asked for', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers', { size: PHONE }, async ({ page }) => {
      await page.locator('.card img').first().waitFor();
      const asked = (sample) => server.requests.some(({ path }) => path.endsWith(`/samples/${sample}/image`));
      assert.ok(asked(0) && !asked(11));
      const comes = page.waitForRequest(/samples\/11\/image$/);
      await page.locator('.card').last().scrollIntoViewIfNeeded();
      await comes;
    }),
  );
});

test('a picture that no browser can show is a message', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers', {}, async ({ page }) => {
      const card = page.locator('.card').nth(3);
      await card.getByText(/This browser cannot show the picture: image\/png, \d/).waitFor();
      assert.equal(await card.locator('img').count(), 0);
    }),
  );
});

test('the address of a picture ends with its place', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers', {}, async ({ page }) => {
      await page.evaluate(() => {
        window.__ended = [];
        const end = URL.revokeObjectURL.bind(URL);
        URL.revokeObjectURL = (url) => {
          window.__ended.push(url);
          end(url);
        };
      });
      const image = page.locator('.card img').first();
      const url = await image.getAttribute('src');
      await page.getByRole('link', { name: 'Next ›' }).click();
      await page.waitForFunction((of) => window.__ended.includes(of), url);
    }),
  );
});

test('sounds have a player, lists of numbers a picture, texts their lines', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/speech-commands', {}, async ({ page }) => {
      await page.waitForFunction(() => document.querySelector('.card audio')?.duration > 0.3);
      assert.equal(await page.locator('.card audio').first().getAttribute('aria-label'), 'audio of sample 0');
      await page.goto(`${server.url}#/datasets/digits`);
      const canvas = page.locator('.card canvas').first();
      await canvas.waitFor();
      assert.match(await canvas.getAttribute('aria-label'), /^pixels of sample 0 as 28 × 28: 784 × UInt8, 0 to 255, mean \d/);
      const pixels = () => canvas.evaluate((one) => [one.width, one.height, Math.max(...one.getContext('2d').getImageData(0, 0, one.width, one.height).data.filter((_, at) => at % 4 === 0))]);
      await page.waitForFunction(() => document.querySelector('.card canvas').width === 28);
      assert.deepEqual(await pixels(), [28, 28, 255]);
      await page.goto(`${server.url}#/datasets/tinyshakespeare`);
      const lines = page.locator('.card .lines').nth(2);
      await lines.waitFor();
      assert.match(await lines.innerText(), /^ROMEO:\nO, she doth teach the torches to burn bright!\\r\n/);
      assert.equal(await lines.locator('.escape').first().innerText(), '\\r');
      await page.goto(`${server.url}#/datasets/dialogues`);
      await page.locator('.card .lines', { hasText: '"role": "user"' }).first().waitFor();
      await says(page, '18446744073709551615');
    }),
  );
});

test('an epoch shows the samples of a step in the order of its plan', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers', { forgives: [failed] }, async ({ page }) => {
      await page.getByLabel('As an epoch reads them').check({ force: true });
      const field = (name) => page.getByRole('textbox', { name, exact: true });
      await field('Epoch').fill('2');
      await field('Global batch size').fill('32');
      await field('Step').fill('3');
      assert.equal(await field('or position').inputValue(), '96');
      await field('Rank').fill('1');
      await page.getByRole('button', { name: 'Show' }).click();
      await says(page, 'Enter a rank from 0, and a world size above it.');
      await field('World size').fill('2');
      await page.keyboard.press('Enter');
      await says(page, /Rank 1 reads 16 samples of positions 96 to 127; 1 to 12 here/);
      // What /at names, in its order: the newest of the three plans is the first choice.
      const plan = server.datasets.plans.filter((one) => one.dataset === 'flowers').at(-1);
      const expected = server.datasets.at(plan, { epoch: 2, position: 96, size: 32, rank: 1, world: 2 });
      const shown = async () => (await page.locator('.card h3').allInnerTexts()).map((one) => one.replaceAll('\n', ' '));
      const titles = (found) => found.map(({ sample, position }) => `Sample ${sample.toLocaleString('en')} position ${position}`);
      await page.waitForFunction(() => document.querySelector('.cards[aria-busy="false"]'));
      assert.deepEqual(await shown(), titles(expected.slice(0, 12)));
      assert.ok(server.requests.some(({ path }) => path.endsWith(`/samples?numbers=${expected.slice(0, 12).map(({ sample }) => sample).join(',')}`)));
      await page.getByRole('link', { name: 'Next ›' }).click();
      await page.waitForFunction(() => document.querySelectorAll('.card').length === 4);
      assert.deepEqual(await shown(), titles(expected.slice(12)));
      await page.getByRole('link', { name: 'Next step ›' }).click();
      await says(page, /of positions 128 to 159/);
      assert.equal(await field('Step').inputValue(), '4');
      // A refusal is the node's.
      await field('Step').fill('9999');
      await page.getByRole('button', { name: 'Show' }).click();
      await says(page, /position 319968 is outside the epoch, which has 3670 samples/i);
    }),
  );
});

test('the labels of partitions are a picture and tables, by plan and epoch', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers?view=partitions', {}, async ({ page }) => {
      await says(page, 'All numbers are counts');
      const { version } = server.datasets.named('flowers');
      const plans = server.datasets.plans.filter((plan) => plan.version === version);
      assert.ok(server.requests.some(({ path }) => path === `/v1/plans?version=${version}&limit=10000`), 'only the plans of this version');
      const asked = (plan, epoch) => server.requests.some(({ path }) => path === `/v1/plans/${plan.id}/labels?epoch=${epoch}&first=0&partitions=64`);
      assert.ok(asked(plans.at(-1), 0), 'the newest plan');
      assert.match(await page.locator('canvas').getAttribute('aria-label'), /80.% from those of the version in the mean/);
      const size = await page.evaluate(() => { const { width, height } = document.querySelector('.of-labels canvas'); return [width, height]; });
      assert.deepEqual(size, [16, 5], 'partitions beside each other, labels below each other');
      // The second partition has most of the second label.
      const [light, dark] = await page.evaluate(() => {
        const { data } = document.querySelector('.of-labels canvas').getContext('2d').getImageData(1, 0, 1, 2);
        return [data[0], data[4]];
      });
      assert.ok(dark < 91 && light > 91, `${dark} ${light}`);
      const rows = await page.locator('table', { hasText: 'Partitions' }).last().locator('tbody tr').allInnerTexts();
      assert.match(rows[1], /^1\s+229\s+\d+.%\s+tulip 84.% instead of 22.%\s+counts$/);
      await page.getByLabel('Epoch', { exact: true }).fill('6');
      await page.getByRole('button', { name: 'Show', exact: true }).click();
      await says(page, 'its numbers are estimates');
      assert.ok(asked(plans.at(-1), 6) && page.url().includes('epoch=6'));
      await page.locator('.of-labels select').selectOption(plans[0].id);
      await page.waitForFunction((id) => location.hash.includes(id), plans[0].id);
      await says(page, 'its numbers are estimates');
      await page.getByLabel('Epoch', { exact: true }).fill('x');
      await page.getByRole('button', { name: 'Show', exact: true }).click();
      await says(page, 'Enter the epoch as a whole number');
    }),
  );
});

test('partitions come in parts, and an epoch that is too far says so', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/datasets/web-pairs?view=partitions', { forgives: [failed] }, async ({ page }) => {
      await says(page, 'Partitions 0 to 63 of 1,000 in epoch 0');
      await says(page, '984 other labels');
      await page.getByRole('link', { name: 'Next partitions' }).click();
      await says(page, 'Partitions 64 to 127 of 1,000');
      await page.getByLabel('Epoch', { exact: true }).fill('5000');
      await page.getByRole('button', { name: 'Show', exact: true }).click();
      await says(page, 'ask for fewer partitions, or an earlier epoch');
    }),
  );
});

test('a version without a plan says so', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/speech-commands?order=epoch', {}, async ({ page }) => {
      await says(page, 'No plan orders this version.');
    }),
  );
});

test('a sample has every value, its digest, and where plans read it', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/digits', {}, async ({ page }) => {
      // Into a sample by keyboard.
      await page.locator('.card h3 a').nth(5).focus();
      await page.keyboard.press('Enter');
      await page.locator('h1', { hasText: 'Sample 5' }).waitFor();
      await page.waitForFunction(() => document.activeElement?.tagName === 'H1');
      await page.locator('.values canvas').first().waitFor();
      assert.equal(await page.locator('.values dt').count(), 5);
      await page.getByText(/^[0-9a-f]{64}$/).first().waitFor();
      assert.ok(!server.requests.some(({ path }) => path.includes('/where')), 'plans out of view are not asked');
      await page.getByLabel('Shown as').nth(1).selectOption({ label: '3 planes of 32 × 32' });
      await page.waitForFunction(() => [...document.querySelectorAll('.values canvas')].some((canvas) => canvas.width === 98));
      await page.getByRole('heading', { name: 'Where it is used' }).scrollIntoViewIfNeeded();
      await page.getByLabel('Epoch').fill('3');
      const plans = server.datasets.plans.filter((one) => one.dataset === 'digits').reverse();
      const { position } = server.datasets.where(plans[0], 3, 5);
      await page.locator('tbody tr', { hasText: position.toLocaleString('en') }).first().waitFor();
      assert.equal(await page.locator('tbody tr').count(), 2);
      // The step that has it shows it.
      await page.getByRole('link', { name: 'Show the step' }).first().click();
      await says(page, new RegExp(`of positions ${(position - (position % 64)).toLocaleString('en')} to`));
      const found = server.datasets.at(plans[0], { epoch: 3, position: position - (position % 64), size: 64 });
      assert.ok(found.some(({ sample }) => sample === 5));
    }),
  );
});

test('a long text is whole on request, and a value is a file on request', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/tinyshakespeare/samples/5', {}, async ({ page }) => {
      const lines = page.locator('.values .lines');
      await lines.waitFor();
      const before = (await lines.innerText()).length;
      await page.getByRole('button', { name: 'Show the whole text' }).click();
      await page.waitForFunction((length) => document.querySelector('.values .lines').innerText.length > 2 * length, before);
      const saved = page.waitForEvent('download');
      await page.getByRole('button', { name: 'Save as a file' }).click();
      assert.equal((await saved).suggestedFilename(), 'tinyshakespeare-5-text.txt');
    }),
  );
});

test('hostile samples are text, and their pictures run nothing', async () => {
  await fixture({ scenario: 'hostile' }, (server) =>
    visit(server, `${HOSTILE_HASH}/samples/1`, {}, async ({ page }) => {
      const first = page.locator('.values .lines').first();
      await first.waitFor();
      assert.ok((await first.innerText()).includes('<script>window.__owned = 1</script>'));
      assert.ok((await first.innerText()).includes('\\u{202e}') && (await first.innerText()).includes('\\u{0}'));
      await page.getByText(/This browser cannot show the picture/).waitFor();
      // A drawing is an image, which runs no script; a document is not shown.
      await page.locator('.values > div', { hasText: 'image/svg+xml' }).scrollIntoViewIfNeeded();
      await page.waitForFunction(() => document.querySelector('.values img')?.complete);
      assert.equal(await page.locator('main script, main iframe, main object, main embed, main svg[onload]').count(), 0);
      assert.ok(!server.requests.some(({ path }) => path.endsWith('/html')), 'a type that is no medium is not asked for');
      assert.ok(server.requests.some(({ path }) => path.includes('/samples/1/a%2Fb%3Fc%23d%252e..')));
      assert.equal(await page.evaluate(() => window.__owned), undefined);
      await page.goto(`${server.url}${HOSTILE_HASH}?view=shards`);
      await page.locator('.label-words', { hasText: '<script>' }).first().waitFor();
      assert.equal(await page.evaluate(() => window.__owned), undefined);
    }),
  );
});

test('100,000 shards come in windows, each with its labels in words', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/datasets/web-pairs?view=shards', {}, async ({ page }) => {
      await page.locator('.label-words', { hasText: /kind \d+ \d/ }).first().waitFor();
      const of = (from) => server.requests.slice(from).filter(({ path }) => path.includes('/shards?'));
      assert.deepEqual(of(0).map(({ path }) => path.split('?')[1]), ['offset=0&limit=50']);
      const from = server.requests.length;
      await page.locator('.long').evaluate((box) => box.scrollTo(0, box.scrollHeight));
      await page.locator('.shard-number', { hasText: /^99,999$/ }).waitFor();
      await page.locator('.long').evaluate((box) => box.scrollTo(0, box.scrollHeight / 2));
      await page.locator('.shard-number', { hasText: /^50,000$/ }).waitFor();
      assert.ok(new Set(of(from).map(({ path }) => path)).size <= 6 && of(from).every(({ path }) => /limit=50$/.test(path)));
      assert.ok((await page.locator('.long tbody tr:not(.space)').count()) < 60);
      assert.equal(await page.locator('.long table').getAttribute('aria-rowcount'), '100001');
      // A shard leads to its samples.
      await page.locator('.long').evaluate((box) => box.scrollTo(0, 0));
      await page.getByRole('link', { name: '4,000', exact: true }).click();
      await says(page, 'Samples 4,000 to 4,011 of 400,000,000');
    }),
  );
});

test('labels of a large version are the most frequent, with their shares', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/datasets/web-pairs?view=labels', {}, async ({ page }) => {
      await says(page, /21,843 labels in column label; the 1,000 with the most samples/);
      assert.ok((await page.locator('.long tbody tr').count()) < 60);
      assert.match(await text(page, '.long tbody tr:not(.space)'), /kind 0\s+n00000000\s+0\.2\u00a0%\s+900,000/);
    }),
  );
});

test('datasets and commits come in pages, and an older version keeps its address', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/datasets', {}, async ({ page }) => {
      await says(page, 'dialogues');
      assert.equal(await page.locator('tbody tr').count(), 100);
      await page.getByRole('link', { name: 'Next page' }).click();
      await says(page, 'sweep-150');
      await page.goto(`${server.url}#/datasets/web-pairs?view=versions`);
      await page.getByRole('link', { name: 'Older commits' }).click();
      await page.locator('tbody th', { hasText: /^70$/ }).waitFor();
      const { version } = server.datasets.named('web-pairs').commits[69];
      await page.getByRole('link', { name: version.slice(0, 12) }).click();
      await says(page, 'not the present one');
      assert.ok(page.url().endsWith(`#/datasets/web-pairs?version=${version}`));
      await page.getByRole('link', { name: 'Columns' }).click();
      await says(page, 'feature_12');
      assert.ok(page.url().includes(`version=${version}`));
    }),
  );
});

test('a version is compared with an earlier one, and the address keeps it', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers?view=versions', {}, async ({ page }) => {
      await page.getByRole('link', { name: 'Compare with commit 1' }).click();
      const { version, commits } = server.datasets.named('flowers');
      await says(page, `Changes since ${commits[0].version.slice(0, 12)}`);
      assert.ok(page.url().endsWith(`#/datasets/flowers?view=versions&with=${commits[0].version}`));
      await says(page, '3,058 in both, 612 added, 7 removed');
      assert.ok(server.requests.some(({ path }) => path === `/v1/versions/${version}/diff?from=${commits[0].version}&stats=true`));
      const rows = (caption) => page.locator('table', { hasText: caption }).locator('tbody tr').allInnerTexts();
      assert.match((await rows('Changes of columns')).join('; '), /image\s+added\s+Utf8; .*order\s+b, image instead of image, b/);
      assert.match((await rows('Labels, those')).join('; '), /daisy\s+633\s+17.%\s+673\s+18.%\s+\+\d\.\d.points/);
      assert.match((await rows('Columns of numbers')).join('; '), /image\s+1\s+1\.5\s+0\.25/);
      await page.getByRole('link', { name: 'End the comparison' }).click();
      await page.locator('.compared').waitFor({ state: 'detached' });
    }),
  );
});

test('a comparison that is too large says which command makes it', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, since0('large', 'web-pairs'), {}, async ({ page }) => {
      await says(page, 'Too many shards differ to compare their samples here');
      await says(page, 'The 100 labels that changed most, of 1,000');
    }),
  );
});

test('samples need a token as all else does, and their pictures send it', async () => {
  await fixture({ scenario: 'healthy', tokens: TOKENS }, (server) =>
    visit(server, '#/datasets/flowers', { forgives: [failed] }, async ({ page }) => {
      await enter(page, 'shardd_some');
      await page.locator('.card img').first().waitFor();
      const media = server.requests.filter(({ path }) => path.endsWith('/image'));
      assert.ok(media.length > 0 && media.every(({ headers, status }) => headers.authorization === 'Bearer shardd_some' && status === 200));
      assert.ok(server.requests.every(({ path }) => !path.includes('shardd_')));
    }),
  );
});

test('a busy node is asked again for what it turned away', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    const turned = new Set();
    server.busy = (path) => /\/image$|\/at$/.test(path) && !turned.has(path) && turned.add(path);
    return visit(server, '#/datasets/flowers?order=epoch', { forgives: [failed] }, async ({ page }) => {
      await page.locator('.card img').first().waitFor();
      assert.ok(turned.size >= 1);
    });
  });
});

test('a list that an answer has no room for is named, and no picture', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    const of = server.datasets.named('digits');
    const { values } = of;
    of.values = (sample) => [{ kind: 'list', type: 'UInt8', length: 784, values: [] }, ...values(sample).slice(1)];
    return visit(server, '#/datasets/digits', {}, async ({ page }) => {
      await says(page, '784 × UInt8; only the page of the sample shows them');
      assert.equal(await page.locator('.card canvas').count(), 0);
    });
  });
});

test('a picture without an answer comes once the node answers again', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '#/datasets/flowers', { isClean: false, forgives: [/./] }, async ({ page }) => {
      await page.route(/\/samples\/0\/image$/, (route) => route.abort());
      await page.reload();
      await page.locator('.card').first().getByText('No answer: no connection').waitFor();
      await page.unroute(/\/samples\/0\/image$/);
      await server.stop();
      await page.locator('.away').waitFor();
      await server.start();
      await page.locator('.card').first().locator('img').waitFor();
    }),
  );
});

test('runs come in pages', async () => {
  await fixture({ scenario: 'large' }, (server) =>
    visit(server, '#/runs', {}, async ({ page }) => {
      await says(page, 'llm-7b');
      assert.equal(await page.locator('tbody tr').count(), 100);
      const first = await text(page, 'tbody th');
      await page.getByRole('link', { name: 'Next page' }).click();
      await page.waitForFunction((name) => document.querySelector('tbody th') && document.querySelector('tbody th').innerText !== name, first);
      await page.getByRole('link', { name: 'First page' }).click();
      await page.waitForFunction((name) => document.querySelector('tbody th')?.innerText === name, first);
    }),
  );
});

test('a cluster that changes in every way under the page breaks none', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '', { forgives: [failed] }, async ({ page, faults }) => {
      await isSound(page);
      const clusters = Object.keys(SCENARIOS).map((scenario) => new Cluster(scenario));
      const datasets = Object.keys(SCENARIOS).map((scenario) => new Datasets(scenario));
      const places = ['#/', '#/nodes', '#/nodes/n2', '#/nodes/n4', '#/', '#/runs', '#/runs/vit-b16', '#/runs/llm-7b', '#/shards', '#/shards?by=latency&node=n1', '#/datasets', '#/datasets/flowers', '#/datasets/digits/samples/3', '#/datasets/web-pairs?view=shards'];
      for (let step = 0; step < 90; step += 1) {
        server.cluster = clusters[(step * 5) % clusters.length];
        server.datasets = datasets[(step * 5) % datasets.length];
        if (step % 4 === 0) server.emit('run', `r${step}`, step % 8 === 0);
        if (step % 3 === 0) await page.evaluate((hash) => (location.hash = hash), places[(step * 7) % places.length]);
        if (step % 10 === 5) await page.getByRole('button', { name: /^Colours/ }).click();
        if (step % 12 === 7) await page.setViewportSize(step % 24 === 7 ? PHONE : WIDE);
        await page.waitForTimeout(60 + 40 * (step % 7));
        assert.equal(await page.getByText('This page cannot show').count(), 0, `step ${step} at ${page.url()}`);
        none(faults);
      }
    }),
  );
});

// --- the frame -------------------------------------------------------------------------------------------------------

test('the page works under a path of a proxy', async () => {
  await fixture({ scenario: 'trouble', prefix: '/clusters/a' }, (server) =>
    visit(server, '', {}, async ({ page }) => {
      await isSound(page);
      await page.getByRole('link', { name: 'Runs', exact: true }).click();
      await page.locator('tbody tr').first().waitFor();
      assert.ok(server.requests.every(({ path }) => path.startsWith('/clusters/a/')), 'an address leaves the path');
      const licences = await page.request.get(`${server.url}LICENSES.txt`);
      assert.match(await licences.text(), /preact[\s\S]*uplot/);
    }),
  );
});

test('colours follow the machine, or a choice that stays', async () => {
  await fixture({ scenario: 'healthy' }, (server) =>
    visit(server, '', { dark: true }, async ({ page }) => {
      await isSound(page);
      const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      const dark = await ground();
      await page.getByRole('button', { name: 'Colours: auto' }).click();
      await page.getByRole('button', { name: 'Colours: light' }).waitFor();
      const light = await ground();
      assert.notEqual(light, dark);
      await inspect(page);
      await page.reload();
      await isSound(page);
      assert.equal(await ground(), light);
      await page.getByRole('button', { name: 'Colours: light' }).click();
      assert.equal(await ground(), dark);
    }),
  );
});

test('a chart gives its values by arrow keys, and in a table', async () => {
  await fixture({ scenario: 'trouble' }, (server) =>
    visit(server, '', {}, async ({ page }) => {
      await isSound(page);
      const chart = page.getByRole('slider', { name: /Time that the slowest rank waits/ });
      await chart.focus();
      const now = await chart.getAttribute('aria-valuetext');
      assert.match(now, /^now: vit-b16 \d+/);
      for (let times = 0; times < 5; times += 1) await page.keyboard.press('PageDown');
      for (let times = 0; times < 6; times += 1) await page.keyboard.press('PageUp');
      const before = await chart.getAttribute('aria-valuetext');
      assert.match(before, /^\d\d:\d\d: vit-b16 \d(\.\d)?\u00a0%$/);
      const legend = page.locator('.chart', { hasText: 'slowest rank' }).locator('.legend');
      assert.match(await legend.locator('.moment').innerText(), /^\d\d:\d\d$/);
      await page.keyboard.press('Escape');
      assert.equal(await legend.locator('.moment').innerText(), 'now');
    }),
  );
});

test('a chart that waits for its library is drawn when that arrives, at whatever moment', async () => {
  await fixture({ scenario: 'healthy' }, async (server) => {
    let arrive;
    server.held.set('charts.js', new Promise((done) => (arrive = done)));
    await visit(server, '', { hasClock: true }, async ({ page }) => {
      await page.locator('.plot').first().waitFor();
      const asked = page.waitForResponse(/charts\.js$/);
      // With its clock stopped, the page of a node is drawn, and what follows a drawing waits.
      await stop(page);
      await page.evaluate(() => (location.hash = '#/nodes/n1'));
      const waits = page.locator('main', { hasText: 'Node n1' }).locator('.plot').first();
      for (let times = 0; times < 20 && !(await waits.isVisible()); times += 1) {
        await page.clock.runFor(50);
        await waits.waitFor({ timeout: 1000 }).catch(() => undefined);
      }
      await waits.waitFor();
      arrive();
      await (await asked).finished();
      await turn(page, 1);
      await page.waitForFunction(() => [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('canvas')));
    });
  });
});

test('times are local, with UTC in the title', async () => {
  await fixture({ scenario: 'trouble' }, (server) =>
    visit(server, '', {}, async ({ page }) => {
      const time = page.locator('.finding time').first();
      await time.waitFor();
      assert.match(await time.getAttribute('title'), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
      assert.match(await time.getAttribute('datetime'), /Z$/);
    }),
  );
});

test('an answer of another form leaves the other pages usable', async () => {
  await fixture({ scenario: 'healthy' }, (server) => {
    server.cluster.overview = () => ({ node: 'n1', release: 1, at: 'x', nodes: null, runs: [{ run: {}, readers: null }], findings: 'none', totals: null });
    return visit(server, '', { isClean: false }, async ({ page }) => {
      await says(page, /No answer for the overview: The answer has another form/);
      await page.getByRole('link', { name: 'Nodes', exact: true }).click();
      await page.getByText('n2').first().waitFor();
    });
  });
});

// --- a real node -----------------------------------------------------------------------------------------------------

async function ofNode(page) {
  const answer = async (path) =>
    page.evaluate(async (of) => {
      const token = sessionStorage.getItem('shardd.token');
      const response = await fetch(`./v1/${of}`, { headers: token ? { authorization: `Bearer ${token}` } : {} });
      return response.ok ? response.json() : undefined;
    }, path);
  const { rows = [] } = (await answer('cluster/nodes?limit=1')) ?? {};
  const [run] = (await answer('runs?limit=1')) ?? [];
  const [dataset] = (await answer('datasets?limit=1')) ?? [];
  const ofDataset = dataset ? ['', '?view=columns', '?view=labels', '?view=shards', '?view=versions', '?view=partitions', '?order=epoch', '/samples/0'].map((view) => `#/datasets/${dataset.name}${view}`) : [];
  return ['#/', '#/nodes', ...rows.map(({ id }) => `#/nodes/${id}`), '#/shards', '#/datasets', ...ofDataset, '#/runs', ...(run ? [`#/runs/${run.id}`] : [])];
}

if (node !== undefined) {
  tests.length = 0;
  const url = node.endsWith('/') ? node : `${node}/`;
  const forgives = [failed];
  const signIn = async (page) => {
    await page.waitForFunction(() => document.querySelector('main h1, .token'));
    if (process.env.SHARDD_TOKEN && (await page.locator('.token').count()) > 0) await enter(page, process.env.SHARDD_TOKEN);
    await page.waitForFunction(() => document.querySelector('main h1') && !document.querySelector('.token'));
  };
  for (const [width, size] of Object.entries(SIZES)) {
    for (const dark of [false, true]) {
      test(`the pages of ${url} ${width} ${dark ? 'dark' : 'light'}`, () =>
        visit({ url }, '', { size, dark, forgives }, async ({ page }) => {
          await signIn(page);
          for (const hash of await ofNode(page)) {
            await page.goto(`${url}${hash}`);
            await isSound(page);
          }
        }));
    }
  }
  test(`the answers of ${url} fit the pages`, () =>
    visit({ url }, '', { forgives }, async ({ page }) => {
      await signIn(page);
      for (const hash of await ofNode(page)) {
        await page.goto(`${url}${hash}`);
        await isSound(page);
        assert.equal(await page.getByText('cannot show the answer').count(), 0, hash);
        assert.equal(await page.getByText('NaN').count(), 0, hash);
        assert.equal(await page.getByText('undefined').count(), 0, hash);
      }
    }));
  test(`a node of ${url} that does not drain can be drained`, () =>
    visit({ url }, '', { forgives }, async ({ page }) => {
      await signIn(page);
      const { rows } = await page.evaluate(async () => {
        const token = sessionStorage.getItem('shardd.token');
        return (await fetch('./v1/cluster/nodes?limit=100', { headers: token ? { authorization: `Bearer ${token}` } : {} })).json();
      });
      const row = rows.find((one) => one.state === 'live' && !one.draining);
      await page.goto(`${url}#/nodes/${row.id}`);
      await page.getByRole('button', { name: 'Drain …', exact: true }).waitFor();
      assert.equal(await page.getByRole('button', { name: 'End the drain …' }).count(), 0);
    }));
  test(`the page of ${url} has the policy and loads nothing from elsewhere`, () =>
    visit({ url }, '', { forgives }, async ({ page }) => {
      const response = await page.reload();
      const policy = response.headers()['content-security-policy'] ?? '';
      for (const part of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"]) assert.ok(policy.includes(part), policy);
      assert.equal(response.headers()['x-content-type-options'], 'nosniff');
    }));
}

// --- all of them -----------------------------------------------------------------------------------------------------

let passed = 0;
const failures = [];
for (const { name, run } of tests.filter((one) => given.every((word) => one.name.includes(word)))) {
  const began = Date.now();
  try {
    await run();
    passed += 1;
    console.log(`ok     ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(name);
    console.log(`FAILED ${name}\n${error.stack ?? error}`);
  }
}
await browser.close();
console.log(`${passed} passed, ${failures.length} failed`);
process.exitCode = failures.length > 0 || passed === 0 ? 1 : 0;
