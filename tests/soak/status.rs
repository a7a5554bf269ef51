//! The status page in a real browser, wide and narrow, light and dark.

use crate::support::fenced::{Fenced, code, ok};
use crate::support::guardian::Folder;
use crate::support::programs::run;
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Options, ProxyOptions};
use std::process::Command;

const POLICIES: &str = "version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
";

/// Prints the width of a picture, and the color of its upper left corner.
const CORNER: &str = "import sys, zlib, struct
data, at, packed = open(sys.argv[1], 'rb').read(), 8, b''
while at < len(data):
    size, kind = struct.unpack('>I4s', data[at:at + 8])
    if kind == b'IHDR': width = struct.unpack('>I', data[at + 8:at + 12])[0]
    if kind == b'IDAT': packed += data[at + 8:at + 8 + size]
    at += size + 12
print(width, *zlib.decompress(packed)[1:4])";

struct Browser {
    folder: Folder,
    url: String,
}

impl Browser {
    /// Runs the browser. Returns its output and its errors.
    fn look(&self, arguments: &[&str]) -> (String, String) {
        let profile = format!("--user-data-dir={}", self.folder.join("profile").display());
        let mut chromium = Command::new("chromium");
        chromium.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ]);
        let output = run(chromium.arg(profile).args(arguments).arg(&self.url).env("HOME", self.folder.path()));
        let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(!error.contains("Content Security Policy"), "{error}");
        (out, error)
    }

    /// The width, and the red, green and blue of the background.
    fn picture(&self, width: u32, scheme: &str) -> Vec<u32> {
        let file = self.folder.join("picture.png").display().to_string();
        let (screenshot, size) = (format!("--screenshot={file}"), format!("--window-size={width},900"));
        self.look(&[&screenshot, &size, &format!("--blink-settings=preferredColorScheme={scheme}")]);
        let shown = run(Command::new("python3").args(["-c", CORNER, &file])).stdout;
        String::from_utf8(shown).unwrap().split_whitespace().map(|number| number.parse().unwrap()).collect()
    }
}

#[test]
fn a_browser_shows_the_status_page() {
    let options = ProxyOptions::default().policies(POLICIES).arguments(&["--http", "127.0.0.1:0"]);
    let fenced = Fenced::start_with(Options::default(), "CREATE TABLE jobs (n int)", &options);
    let address = wait_for("metrics are served", DEADLINE, || {
        let log = fenced.proxy.log();
        Some(log.split_once("metrics_served address=\"")?.1.split_once('"')?.0.to_owned())
    });
    let (mut old, mut new) = (fenced.holder(46), fenced.holder(47));
    ok(&mut old, "INSERT INTO jobs VALUES (1)");
    ok(&mut new, "INSERT INTO jobs VALUES (2)");
    assert_eq!(code(&mut old, "INSERT INTO jobs VALUES (3)"), "LF001");
    let browser = Browser { folder: Folder::new("browser"), url: format!("http://{address}/") };

    // The document as parsed by the browser.
    let (dom, _) = browser.look(&["--dump-dom"]);
    for text in [
        "<svg class=\"wide\"",
        "<h2>Fences</h2>",
        "<td data-name=\"highest token\">47</td>",
        ">LF001</td>",
        ">jobs=47</td>",
        "started ",
    ] {
        assert!(dom.contains(text), "{text} in {dom}");
    }
    // The page's style sheet is in effect: otherwise the background would be white in dark mode too.
    assert_eq!(browser.picture(1000, "1"), [1000, 255, 255, 255]);
    assert_eq!(browser.picture(1000, "0"), [1000, 13, 17, 23]);
    assert_eq!(browser.picture(500, "1"), [500, 255, 255, 255]);
}
