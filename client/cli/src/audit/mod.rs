//! `shardctl audit`: that a model saw exactly one version of a dataset, each sample once in each epoch; roots, and proofs of
//! single samples.

mod send;
mod verify;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use shardd_api::lookup::{LookupError, check_table};
use shardd_client::audit::row_digests;
use shardd_plan::{Epoch, Plan, SampleNo, SlotTable};
use shardd_store::catalog::Catalog;
use shardd_store::connect::Connect;
use shardfmt::audit::{Proof, Subject, prove, root};
use shardfmt::{ManifestFile, NodeHash, RowDigest};

use crate::failure::{Failure, one_line};
use crate::human::count;
use crate::output;
use crate::plan::PlanOrRun;
use crate::table::facts;

/// No proof is longer.
const LONGEST_PROOF: u64 = 64 << 10;

/// Prove what a model was trained on: roots of epochs, reports of ranks, single samples
#[derive(Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Subcommand)]
enum AuditCommand {
    /// The root of an epoch in which each sample is read once: one hash for all of them, with positions and bytes
    Root(Root),
    /// Compare a root, the reports of a run's ranks, or the samples they consumed with plan and manifest
    Verify(verify::Verify),
    /// Send the reports of ranks that could reach no node
    Send(send::Send),
    /// Prove that an epoch reads a sample, to a person who knows the root
    Prove(Prove),
    /// Check a proof; this needs only the root
    Check(Check),
}

/// Arguments of `audit root`.
#[derive(Args)]
struct Root {
    #[command(flatten)]
    which: PlanOrRun,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,
}

/// Arguments of `audit prove`.
#[derive(Args)]
struct Prove {
    /// Number of the sample in the order of the dataset, from 0
    sample: u64,

    #[command(flatten)]
    which: PlanOrRun,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,

    /// Write the proof to this file, and print its root
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Arguments of `audit check`.
#[derive(Args)]
struct Check {
    /// The file of the proof
    proof: PathBuf,

    /// The root that it must lead to
    #[arg(long)]
    root: NodeHash,
}

impl Audit {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        match self.command {
            AuditCommand::Root(root) => root.run(&*connect.catalog()?, json),
            AuditCommand::Send(send) => send.run(connect, json),
            AuditCommand::Verify(verify) => verify.run(&*connect.catalog()?, json),
            AuditCommand::Prove(prove) => prove.run(&*connect.catalog()?, json),
            AuditCommand::Check(check) => check.run(json),
        }
    }
}

impl Root {
    fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest, _) = self.which.open(catalog)?;
        let table = table(&plan, self.epoch)?;
        let root = root(&plan, &table, &digests(catalog, &manifest)?);
        let subject = Subject::of(&plan, table.epoch());
        match json {
            true => output::json(&json!({ "root": root, "subject": subject })),
            false => output::print(&describe(&subject, root, &[])),
        }
        Ok(())
    }
}

impl Prove {
    fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest, _) = self.which.open(catalog)?;
        let (sample, samples) = (self.sample, plan.sample_count());
        if sample >= samples {
            return Err(Failure::wrong(LookupError::NoSuchSample { sample, samples }));
        }
        let table = table(&plan, self.epoch)?;
        let proof = prove(&plan, &table, &digests(catalog, &manifest)?, SampleNo(sample));
        let Some(path) = &self.out else {
            output::json(&proof);
            return Ok(());
        };
        let text = serde_json::to_string(&proof)? + "\n";
        std::fs::write(path, text)
            .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", path.display())))?;
        let root = proof.root().expect("it was made of this epoch");
        match json {
            true => output::json(&json!({ "root": root, "proof": path })),
            false => output::print(&describe(&proof.subject, root, &about(&proof))),
        }
        Ok(())
    }
}

impl Check {
    fn run(self, json: bool) -> Result<(), Failure> {
        let proof = read_proof(&self.proof)?;
        if proof.root() != Some(self.root) {
            return Err(Failure::failed(format!(
                "{} does not lead to that root: it was altered, or is of another epoch, plan or version",
                self.proof.display()
            )));
        }
        match json {
            true => output::json(&json!({ "root": self.root, "proof": proof })),
            false => output::print(&describe(&proof.subject, self.root, &about(&proof))),
        }
        Ok(())
    }
}

fn read_proof(path: &Path) -> Result<Proof, Failure> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_PROOF).read_to_end(&mut text));
    read.map_err(|error| Failure::failed(format!("{} cannot be read: {error}", path.display())))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::failed(format!("{} is not a proof: {}", path.display(), one_line(&error))))
}

fn describe(subject: &Subject, root: NodeHash, more: &[(&str, String)]) -> String {
    let first = [
        ("root", root.to_string()),
        ("plan", subject.plan.to_string()),
        ("version", subject.version.to_string()),
        ("epoch", subject.epoch.to_string()),
        ("samples", format!("{}, each once", count(subject.samples))),
    ];
    facts(&[&first[..], more].concat())
}

fn about(proof: &Proof) -> [(&'static str, String); 3] {
    [
        ("sample", count(proof.sample.0)),
        ("position", count(proof.position)),
        ("row digest", proof.row.to_string()),
    ]
}

/// The table of an epoch, if it can be worked out in reasonable time.
fn table(plan: &Plan, epoch: u32) -> Result<SlotTable, Failure> {
    check_table(plan, epoch).map_err(Failure::wrong)?;
    Ok(SlotTable::at(plan, Epoch(epoch)))
}

fn digests(catalog: &dyn Catalog, manifest: &ManifestFile) -> Result<Vec<RowDigest>, Failure> {
    Ok(row_digests(catalog, manifest)?)
}
