//! The metrics of a node, read by Prometheus' own parser.

use std::path::Path;
use std::process::{Command, Stdio};

use shardd_tests::{Cluster, python};

/// Parses the page, and prints the name and type of each family.
const PARSE: &str = r"
import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation, family.name
    print(family.name, family.type)
";

/// The same of OpenMetrics, with the labels of the first exemplar.
const PARSE_OPENMETRICS: &str = r"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
exemplars = []
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation, family.name
    print(family.name, family.type)
    exemplars += [sample.exemplar.labels for sample in family.samples if sample.exemplar]
print('exemplar', *sorted(exemplars[0]))
";

fn parsed(python: &Path, program: &str, page: &str) -> String {
    let mut parser = Command::new(python)
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    std::io::Write::write_all(&mut parser.stdin.take().expect("piped"), page.as_bytes()).expect("it reads");
    let output = parser.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the parser refused:\n{page}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn prometheus_reads_the_openmetrics_of_a_node_and_its_exemplars() {
    let Some(python) = python() else { return };
    let cluster = Cluster::start(1);
    cluster.nodes[0].get("/v1/status");
    let request = ureq::get(format!("{}/metrics", cluster.nodes[0].http));
    let accepted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let mut answer = request.header("accept", accepted).call().expect("it answers");
    let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let page = answer.body_mut().read_to_string().expect("text");
    let families = parsed(&python, PARSE_OPENMETRICS, &page);
    for line in
        ["shardd_http_requests counter", "target info", "shardd_build_info gauge", "exemplar request_id"]
    {
        assert!(families.lines().any(|found| found == line), "{line} is not among\n{families}");
    }
}

#[test]
fn prometheus_reads_the_metrics_of_a_node() {
    let Some(python) = python() else { return };
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    node.get("/v1/status");
    let page = node.text("/metrics");
    let families = parsed(&python, PARSE, &page);
    for family in [
        "shardd_http_requests counter",
        "shardd_http_request_duration_seconds histogram",
        "shardd_cache_bytes gauge",
        "shardd_misses counter",
        "shardd_exchange_stalled_seconds counter",
    ] {
        assert!(families.lines().any(|line| line == family), "{family} is not among\n{families}");
    }
}
