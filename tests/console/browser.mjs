// A headless Chromium, and pages of it that note each broken rule.

import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';

export const CHROMIUM = [process.env.SHARDD_CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) => path && existsSync(path));
export const WIDE = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

export function launch() {
  return chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
}

/**
 * A page at an address. `faults` has a line for each rule that it breaks: another host, the policy, an error.
 * With `hasClock` a test can stop and turn the page's clock: page.clock.
 */
export async function open(browser, url, { size = WIDE, dark = false, forgives = [], hasClock = false } = {}) {
  const context = await browser.newContext({
    viewport: size,
    colorScheme: dark ? 'dark' : 'light',
    reducedMotion: 'reduce',
    hasTouch: size === PHONE,
    deviceScaleFactor: 1,
    serviceWorkers: 'block',
  });
  const page = await context.newPage();
  if (hasClock) await page.clock.install();
  const faults = [];
  const own = new URL(url).origin;
  page.on('request', (request) => {
    const asked = new URL(request.url());
    if (!['data:', 'blob:'].includes(asked.protocol) && asked.origin !== own) faults.push(`asks ${asked.origin}`);
  });
  page.on('pageerror', (error) => faults.push(`fails: ${error.message}`));
  page.on('dialog', (dialog) => {
    faults.push(`opens a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('console', (message) => {
    const text = `${message.type()}: ${message.text()}`;
    if (['error', 'warning'].includes(message.type()) && !forgives.some((one) => one.test(text))) faults.push(`writes ${text}`);
  });
  await page.exposeFunction('__violated', (text) => faults.push(`breaks its policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => window.__violated(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  });
  await page.goto(url);
  return { page, context, faults };
}
