//! GPU types and workloads that are known before anything was measured here.

use crate::step::{Compute, Draw, StepModel, Sync};
use serde::Deserialize;
use std::sync::LazyLock;
use wattline_core::cluster::{GpuType, Links};
use wattline_core::job::RestartCost;
use wattline_core::units::{Seconds, Watts};

/// A kind of GPU in the catalogue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueGpu {
    /// Its name.
    pub name: Box<str>,
    idle: Watts,
    busy: Watts,
    min_limit: Watts,
    default_limit: Watts,
    max_limit: Watts,
    limit_step: Watts,
    tflops: f64,
    /// How its GPUs are linked.
    pub links: Links,
    /// Where the figures come from.
    pub source: Box<str>,
}

impl CatalogueGpu {
    /// As the core sees it.
    #[must_use]
    pub fn gpu_type(&self) -> GpuType {
        GpuType {
            name: self.name.clone(),
            idle: self.idle,
            busy: self.busy,
            min_limit: self.min_limit,
            default_limit: self.default_limit,
            max_limit: self.max_limit,
            limit_step: self.limit_step,
            tflops: Some(self.tflops),
            links: Some(self.links),
        }
    }
}

/// What a restart costs.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    save: Seconds,
    load: Seconds,
}

/// A workload in the catalogue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueWorkload {
    /// Its name.
    pub name: Box<str>,
    #[serde(default)]
    aliases: Vec<Box<str>>,
    /// The global batch people use.
    pub base_batch: u32,
    /// Gradient noise scale at that batch.
    pub noise_scale: f64,
    restart: Restart,
    /// Where the figures come from.
    pub source: Box<str>,
    on: Vec<OnGpu>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnGpu {
    gpu: Box<str>,
    compute: Compute,
    sync: Sync,
    #[serde(default = "ring_overlap")]
    overlap: f64,
    draw: Draw,
    most_per_gpu: f64,
}

fn ring_overlap() -> f64 {
    2.0
}

impl CatalogueWorkload {
    /// What a restart of it costs.
    #[must_use]
    pub fn restart(&self) -> RestartCost {
        RestartCost { save: self.restart.save, load: self.restart.load }
    }

    /// Names of the GPU types it is known on.
    pub fn gpus(&self) -> impl Iterator<Item = &str> {
        self.on.iter().map(|on| &*on.gpu)
    }
}

/// All of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    gpu: Vec<CatalogueGpu>,
    workload: Vec<CatalogueWorkload>,
}

impl Catalogue {
    /// The one that is built in, read once.
    #[must_use]
    pub fn built_in() -> &'static Self {
        #[expect(clippy::expect_used, reason = "the text is part of the program and tested")]
        static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| {
            toml::from_str(include_str!("catalogue.toml")).expect("the built-in catalogue is sound")
        });
        &BUILT_IN
    }

    /// GPU types.
    #[must_use]
    pub fn gpus(&self) -> &[CatalogueGpu] {
        &self.gpu
    }

    /// Workloads.
    #[must_use]
    pub fn workloads(&self) -> &[CatalogueWorkload] {
        &self.workload
    }

    /// A GPU type by name.
    #[must_use]
    pub fn gpu(&self, name: &str) -> Option<&CatalogueGpu> {
        self.gpu.iter().find(|g| &*g.name == name)
    }

    /// A workload by name or alias.
    #[must_use]
    pub fn workload(&self, name: &str) -> Option<&CatalogueWorkload> {
        self.workload.iter().find(|w| &*w.name == name || w.aliases.iter().any(|a| &**a == name))
    }

    /// The step of a workload on a kind of GPU, if it is known there.
    #[must_use]
    pub fn step(&self, workload: &CatalogueWorkload, gpu: &str) -> Option<StepModel> {
        let on = workload.on.iter().find(|on| &*on.gpu == gpu)?;
        Some(StepModel {
            compute: on.compute,
            sync: on.sync,
            overlap: on.overlap,
            links: self.gpu(gpu)?.links,
            draw: on.draw,
            most_per_gpu: on.most_per_gpu,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_catalogue_is_sound() {
        let catalogue = Catalogue::built_in();
        assert!(catalogue.gpus().len() >= 4 && catalogue.workloads().len() >= 12);
        for workload in catalogue.workloads() {
            assert!(!workload.source.is_empty());
            for gpu in workload.gpus() {
                let step = catalogue.step(workload, gpu).unwrap_or_else(|| panic!("{gpu}?"));
                let card = catalogue.gpu(gpu).unwrap();
                let one = step.step(1, 1, workload.base_batch, card.default_limit).unwrap();
                assert!(one.time.get() > 0.0 && one.power <= card.default_limit);
            }
        }
        for alias in ["resnet50", "gpt2", "bert", "vgg16", "deepspeech2", "ncf"] {
            assert!(catalogue.workload(alias).is_some(), "{alias}");
        }
    }
}
