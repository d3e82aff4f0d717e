// Whether the first screen of the Overview names causes, without a click or a scroll.
//
//     node tests/cluster-view/first-screen.mjs URL [WORDS...]     # WORDS: a regular expression for the text of a finding
//
// For each size, a line for the verdict and for each of the WORDS; the last line is `N passed, N failed`.

import { launch, open, PHONE, WIDE } from '../console/browser.mjs';

const [url, ...causes] = process.argv.slice(2);
const browser = await launch();
let passed = 0;
let failed = 0;
function note(name, is, why) {
  if (is) passed += 1;
  else failed += 1;
  console.log(is ? `ok     ${name}` : `FAILED ${name}: ${why}`);
}

for (const size of [WIDE, PHONE]) {
  const { page, context, faults } = await open(browser, url, { size });
  page.setDefaultTimeout(60_000);
  await page.locator('.finding').nth(causes.length - 1).waitFor();
  // Every text of a finding with its box, at one moment.
  const { verdict, findings } = await page.evaluate(() => {
    const box = (element) => {
      const { top, left, bottom, right, height } = element.getBoundingClientRect();
      return { top, left, bottom, right, height };
    };
    const heading = document.querySelector('h1');
    return {
      verdict: { text: heading.innerText, boxes: [box(heading)] },
      findings: [...document.querySelectorAll('.finding')].map((one) => ({
        text: one.innerText,
        boxes: [...one.querySelectorAll('h3, .cause, .remedy')].map(box),
      })),
    };
  });
  const isSeen = ({ boxes }) =>
    boxes.length > 0 && boxes.every((box) => box.height > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= size.height && box.right <= size.width);
  const at = `at ${size.width}x${size.height}`;
  note(`the verdict is seen ${at}: ${verdict.text.replaceAll('\u00a0', ' ')}`, isSeen(verdict), JSON.stringify(verdict.boxes));
  for (const words of causes) {
    const about = findings.filter(({ text }) => new RegExp(words, 's').test(text));
    const others = JSON.stringify(findings.map(({ text, boxes }) => ({ text, boxes })), undefined, 1);
    note(`a cause is seen ${at}: ${words}`, about.some(isSeen), about.length === 0 ? `there is none in ${others}` : `it is not in the window: ${JSON.stringify(about)}`);
  }
  note(`the page breaks no rule ${at}`, faults.length === 0, faults.join('; '));
  await context.close();
}
await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
