"""Pictures of a report for the documentation: python tools/screenshots.py PAGE.html FOLDER

Needs chromium with its driver (`make browser`), and selenium, which the extra `dev` brings.
"""

import shutil
import sys
from pathlib import Path

from selenium import webdriver

# name, width, height, dark, share of the slider
SHOTS = (("light", 1000, 1250, False, 0.5), ("dark", 1000, 1250, True, 1.0), ("phone", 390, 844, False, 1.0))


def take(page: Path, folder: Path) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        for name, width, height, dark, share in SHOTS:
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            browser.get(page.resolve().as_uri())
            browser.execute_script(
                "const s = document.querySelector('input[type=range]'); s.value = Math.round(s.max * arguments[0]);"
                "s.dispatchEvent(new Event('input'));",
                share,
            )
            browser.save_screenshot(str(folder / f"report-{name}.png"))
    finally:
        browser.quit()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
