// A page that a program opens and closes: node tests/cluster-view/page.mjs
//
// Reads lines from stdin, and answers each with a line: the address of a page to show, an empty line for none (`shown`), or
// `requests` for the paths that the page has asked for since it was shown, as JSON.

import { createInterface } from 'node:readline';
import { launch, open } from '../console/browser.mjs';

const browser = await launch();
let shown;
let asked = [];
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'requests') {
    console.log(JSON.stringify(asked));
    continue;
  }
  await shown?.context.close();
  shown = undefined;
  asked = [];
  if (line !== '') {
    shown = await open(browser, line);
    await shown.page.waitForFunction(() => document.querySelector('main h1') && !document.querySelector('.wait'), undefined, { timeout: 60_000 });
    shown.page.on('request', (request) => {
      const { pathname, search } = new URL(request.url());
      asked.push(pathname + search);
    });
  }
  console.log('shown');
}
await browser.close();
