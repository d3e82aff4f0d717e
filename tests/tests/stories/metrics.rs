//! The metrics of a node, read by Prometheus' own parser.

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

#[test]
fn prometheus_reads_the_metrics_of_a_node() {
    let Some(python) = python() else { return };
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    node.get("/v1/status");
    let page = node.text("/metrics");
    let mut parser = Command::new(python)
        .args(["-c", PARSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    std::io::Write::write_all(&mut parser.stdin.take().expect("piped"), page.as_bytes()).expect("it reads");
    let output = parser.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the parser refused:\n{page}");
    let families = String::from_utf8(output.stdout).expect("text");
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
