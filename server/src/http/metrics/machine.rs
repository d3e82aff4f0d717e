//! The process, its machine, and its way to the metadata.

use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::info::Info;
use shardd_api::status::NodeStatus;

use super::Snapshot;
use crate::metastore::MetastoreTimes;
use crate::observe::usage::{Pressure, ProcessUsage};

impl Snapshot {
    /// The disks and the certificate of a node, and its release.
    pub(super) fn machine(&mut self, status: &NodeStatus) {
        let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
        self.gauges("shardd_build_info", "1, with the release of the node", [(version, 1.0)]);
        let target = [
            ("service_name", "shardd".to_owned()),
            ("service_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service_instance_id", status.node.to_string()),
        ];
        self.0.register(
            "target",
            "What the target is, as OpenTelemetry names it",
            Info::new(target.to_vec()),
        );
        let Some(machine) = &status.machine else { return };
        let directory = |name: &str| [("directory", name.to_owned())];
        let free =
            machine.disks.iter().map(|disk| (directory(disk.directory.name()), disk.free_bytes as f64));
        self.gauges("shardd_disk_free_bytes", "Free bytes of the disk of a directory", free);
        let size =
            machine.disks.iter().map(|disk| (directory(disk.directory.name()), disk.size_bytes as f64));
        self.gauges("shardd_disk_size_bytes", "Size of the disk of a directory, in bytes", size);
        let ends = machine.certificate_ends.map(|ends| ([], ends as f64));
        self.gauges(
            "shardd_certificate_expiry_timestamp_seconds",
            "When the certificate of the node ends, in seconds since 1970",
            ends,
        );
        let issued = machine.certificate_issued.map(|issued| ([], issued as f64));
        self.gauges(
            "shardd_certificate_issue_timestamp_seconds",
            "When the certificate of the node was issued, in seconds since 1970",
            issued,
        );
    }

    /// How many nodes there are.
    pub(super) fn cluster(&mut self, live: usize, lost: usize) {
        self.gauge("shardd_live_nodes", "Live nodes that this node knows, itself too", live as u64);
        self.gauge("shardd_lost_nodes", "Members of the cluster that are not live", lost as u64);
    }

    /// The way to the metadata.
    pub(super) fn metastore(&mut self, times: &MetastoreTimes) {
        self.flag("shardd_metastore_up", "1 if the metadata answered the last request", times.is_up());
        self.0.register(
            "shardd_metastore_request_duration_seconds",
            "Time until the metadata answered, in seconds",
            times.durations(),
        );
    }

    /// The process, as the client libraries of Prometheus count it, and the pressure on its machine.
    pub(super) fn process(&mut self) {
        if let Some(usage) = ProcessUsage::now() {
            self.gauges(
                "process_start_time_seconds",
                "When the process started, in seconds since 1970",
                [([], usage.start_s)],
            );
            self.0.register(
                "process_cpu_seconds",
                "CPU time in user and system mode, in seconds",
                ConstCounter::new(usage.cpu_s),
            );
            self.gauge("process_resident_memory_bytes", "Resident memory in bytes", usage.resident_bytes);
            self.gauge("process_virtual_memory_bytes", "Virtual memory in bytes", usage.virtual_bytes);
            self.gauge("process_open_fds", "Open file descriptors", usage.open_files);
            if let Some(most) = usage.max_files {
                self.gauge("process_max_fds", "Most file descriptors that the process may open", most);
            }
            self.gauge("process_threads", "Threads of the process", usage.threads);
        }
        if let Some(pressure) = Pressure::now() {
            let of = |resource: &str| [("resource", resource.to_owned())];
            self.counters_seconds(
                "shardd_pressure_seconds",
                "Time in which some task of the machine waited for a resource (PSI), in seconds",
                [(of("cpu"), pressure.cpu_s), (of("io"), pressure.io_s), (of("memory"), pressure.memory_s)],
            );
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use shardd_api::machine::{Directory, DiskStatus, MachineStatus};

    /// One that has every metric.
    pub(in super::super) fn machine() -> MachineStatus {
        let disk = DiskStatus {
            directory: Directory::Cache,
            path: "/cache".to_owned(),
            size_bytes: 2,
            free_bytes: 1,
            full: None,
        };
        MachineStatus {
            disks: vec![disk],
            certificate_ends: Some(1),
            certificate_issued: Some(0),
            ..MachineStatus::default()
        }
    }
}
