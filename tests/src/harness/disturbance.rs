//! Failures of parts of a cluster: processes are killed or paused, and the network is cut.
//!
//! At most one member is disturbed at a time, so that the others of three members are a majority.

use prerequisites::etcd::{Release, newest_release};
use rand::Rng as _;
use rand::rngs::SmallRng;
use rustix::process::Signal;

use super::cluster::Cluster;

/// A failure of a part of the cluster.
#[derive(Clone, Copy, Debug)]
pub enum Disturbance {
    /// SIGKILL of a server, which ends its authd too.
    KillServer(usize),
    /// SIGSTOP of a server.
    PauseServer(usize),
    /// SIGKILL of the authd of a server.
    KillAuthd(usize),
    /// A server does not reach a member.
    CutServer(usize, usize),
    /// A server reaches no member.
    IsolateServer(usize),
    /// SIGKILL of a member.
    KillMember(usize),
    /// SIGSTOP of a member.
    PauseMember(usize),
    /// A member reaches no other member, and the servers reach all.
    IsolateMember(usize),
}

impl Disturbance {
    /// Chooses a disturbance of a server, of a member, or of both.
    pub fn choose(cluster: &Cluster, random: &mut SmallRng) -> Vec<Disturbance> {
        let (server, member) =
            (random.random_range(0..cluster.size()), random.random_range(0..cluster.members()));
        let of_server = match random.random_range(0..6) {
            0 | 1 => Disturbance::KillServer(server),
            2 => Disturbance::PauseServer(server),
            3 => Disturbance::KillAuthd(server),
            4 => Disturbance::CutServer(server, member),
            _ => Disturbance::IsolateServer(server),
        };
        let of_member = match random.random_range(0..3) {
            // etcd 3.5.1 can lose changes when it is killed.
            0 if newest_release() == Release::Current => Disturbance::KillMember(member),
            0 | 1 => Disturbance::PauseMember(member),
            _ => Disturbance::IsolateMember(member),
        };
        match random.random_range(0..5) {
            0 | 1 => vec![of_server],
            2 | 3 => vec![of_member],
            _ => vec![of_server, of_member],
        }
    }

    /// Begins the disturbance.
    pub fn begin(self, cluster: &mut Cluster) {
        match self {
            Disturbance::KillServer(server) => cluster.server_mut(server).kill(),
            Disturbance::PauseServer(server) => cluster.server(server).signal(Signal::STOP),
            Disturbance::KillAuthd(server) => drop(cluster.server(server).kill_authd()),
            Disturbance::CutServer(server, member) => cluster.cut(server, member),
            Disturbance::IsolateServer(server) => {
                (0..cluster.members()).for_each(|member| cluster.cut(server, member))
            }
            Disturbance::KillMember(member) => cluster.etcd().member(member).kill(),
            Disturbance::PauseMember(member) => cluster.etcd().member(member).pause(),
            Disturbance::IsolateMember(member) => cluster.isolate_member(member),
        }
    }

    /// Ends the disturbance, and restarts the killed processes.
    pub async fn end(self, cluster: &mut Cluster) {
        match self {
            Disturbance::KillServer(server) => {
                cluster.launch(server).await;
            }
            Disturbance::PauseServer(server) => cluster.server(server).signal(Signal::CONT),
            Disturbance::KillAuthd(_) => {}
            Disturbance::CutServer(..) | Disturbance::IsolateServer(_) | Disturbance::IsolateMember(_) => {
                cluster.heal();
            }
            Disturbance::KillMember(member) => {
                tokio::task::block_in_place(|| cluster.etcd().member(member).restart());
            }
            Disturbance::PauseMember(member) => cluster.etcd().member(member).resume(),
        }
    }
}
