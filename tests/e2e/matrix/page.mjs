// Opens the page of `authd matrix` in headless Chromium: filter, sort, no outside resource, accessibility.
// usage: node page.mjs FILE PACKAGES, where PACKAGES is the folder with node_modules. Prints one JSON line.
// The exit code is 77 if the browser does not start, for example without its shared libraries.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const NO_BROWSER = 77;
const [file, packages] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(packages), "package.json"));
const load = async (name) => {
  const module = await import(pathToFileURL(require.resolve(name)).href);
  return module.default ?? module;
};
const chromium = await load("@sparticuz/chromium");
const puppeteer = await load("puppeteer-core");

const launch = async () => puppeteer.launch({
  args: [...chromium.args, "--no-sandbox"],
  executablePath: await chromium.executablePath(),
  headless: "shell",
});
const browser = await launch().catch((error) => {
  console.error(`Chromium does not start: ${error.message}`);
  process.exit(NO_BROWSER);
});
try {
  const page = await browser.newPage();
  const requests = [];
  const errors = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  await page.goto(pathToFileURL(path.resolve(file)).href);
  const visible = () =>
    page.$$eval("tbody tr", (rows) =>
      rows.filter((row) => row.offsetParent !== null).map((row) => row.cells[1].textContent));
  const all = await visible();
  await page.type("#filter", "alice");
  const filtered = await visible();
  const count = await page.$eval("#count", (output) => output.textContent);
  await page.$eval("#filter", (input) => { input.value = ""; input.dispatchEvent(new Event("input")); });
  const sortBySubject = "thead th:nth-child(2) button";
  await page.click(sortBySubject);
  const ascending = await visible();
  await page.click(sortBySubject);
  const descending = await visible();
  const sorted = await page.$eval("thead th:nth-child(2)", (header) => header.getAttribute("aria-sort"));
  await page.select("#access", "named");
  const named = await visible();
  await page.select("#access", "");
  // The content security policy blocks inline scripts; the evaluation of axe does not pass it.
  await page.setBypassCSP(true);
  await page.evaluate((await import("node:fs")).readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const violations = await page.evaluate(async () =>
    (await window.axe.run()).violations.map((violation) => violation.id));
  const outside = requests.filter((url) => !url.startsWith("file:") && !url.startsWith("data:"));
  console.log(JSON.stringify({ all, filtered, count, ascending, descending, sorted, named, violations, outside, errors }));
} finally {
  await browser.close();
}
