//! Internal types of volumes and claims. Messages about immutable fields show differences between their values.

use crate::validation::internal::{self, Member, Shape};

/// The internal type of kube-apiserver for the source of a persistent volume.
pub(super) const VOLUME_SOURCE: Shape = Shape::Struct(&[
    Member("GCEPersistentDisk", "gcePersistentDisk", Shape::Optional(&Shape::Struct(GCE_DISK))),
    Member("AWSElasticBlockStore", "awsElasticBlockStore", Shape::Optional(&Shape::Struct(AWS_STORE))),
    Member("HostPath", "hostPath", Shape::Optional(&Shape::Struct(HOST_PATH))),
    Member("Glusterfs", "glusterfs", Shape::Optional(&Shape::Struct(GLUSTERFS))),
    Member("NFS", "nfs", Shape::Optional(&Shape::Struct(NFS))),
    Member("RBD", "rbd", Shape::Optional(&Shape::Struct(RBD))),
    Member("Quobyte", "quobyte", Shape::Optional(&Shape::Struct(QUOBYTE))),
    Member("ISCSI", "iscsi", Shape::Optional(&Shape::Struct(ISCSI))),
    Member("FlexVolume", "flexVolume", Shape::Optional(&Shape::Struct(FLEX_VOLUME))),
    Member("Cinder", "cinder", Shape::Optional(&Shape::Struct(CINDER))),
    Member("CephFS", "cephfs", Shape::Optional(&Shape::Struct(CEPHFS))),
    Member("FC", "fc", Shape::Optional(&Shape::Struct(FIBRE_CHANNEL))),
    Member("Flocker", "flocker", Shape::Optional(&Shape::Struct(FLOCKER))),
    Member("AzureFile", "azureFile", Shape::Optional(&Shape::Struct(AZURE_FILE))),
    Member("VsphereVolume", "vsphereVolume", Shape::Optional(&Shape::Struct(VSPHERE_VOLUME))),
    Member("AzureDisk", "azureDisk", Shape::Optional(&Shape::Struct(AZURE_DISK))),
    Member("PhotonPersistentDisk", "photonPersistentDisk", Shape::Optional(&Shape::Struct(PHOTON_DISK))),
    Member("PortworxVolume", "portworxVolume", Shape::Optional(&Shape::Struct(PORTWORX))),
    Member("ScaleIO", "scaleIO", Shape::Optional(&Shape::Struct(SCALE_IO))),
    Member("Local", "local", Shape::Optional(&Shape::Struct(LOCAL))),
    Member("StorageOS", "storageos", Shape::Optional(&Shape::Struct(STORAGE_OS))),
    Member("CSI", "csi", Shape::Optional(&Shape::Struct(CSI))),
]);

/// The internal type of kube-apiserver for the node affinity of a persistent volume.
pub(super) const NODE_AFFINITY: Shape = Shape::Optional(&Shape::Struct(&[Member(
    "Required",
    "required",
    Shape::Optional(&Shape::Struct(&[Member(
        "NodeSelectorTerms",
        "nodeSelectorTerms",
        Shape::List(&Shape::Struct(&[
            Member("MatchExpressions", "matchExpressions", Shape::List(&REQUIREMENT)),
            Member("MatchFields", "matchFields", Shape::List(&REQUIREMENT)),
        ])),
    )])),
)]));

const REQUIREMENT: Shape = Shape::Struct(&[
    Member("Key", "key", Shape::Text),
    Member("Operator", "operator", Shape::Text),
    Member("Values", "values", Shape::Any),
]);

/// The internal type of kube-apiserver for the spec of a claim.
pub(super) const CLAIM_SPEC: Shape = Shape::Struct(&[
    Member("AccessModes", "accessModes", Shape::Any),
    Member("Selector", "selector", Shape::Api("meta/v1.LabelSelector")),
    Member("Resources", "resources", Shape::Struct(RESOURCES)),
    Member("VolumeName", "volumeName", Shape::Text),
    Member("StorageClassName", "storageClassName", Shape::Any),
    Member("VolumeMode", "volumeMode", Shape::Any),
    Member("DataSource", "dataSource", Shape::Optional(&Shape::Struct(DATA_SOURCE))),
    Member("DataSourceRef", "dataSourceRef", Shape::Optional(&Shape::Struct(DATA_SOURCE_REFERENCE))),
    Member("VolumeAttributesClassName", "volumeAttributesClassName", Shape::Any),
]);

const RESOURCES: &[Member] =
    &[Member("Limits", "limits", Shape::Any), Member("Requests", "requests", Shape::Any)];

const DATA_SOURCE: &[Member] = &[
    Member("APIGroup", "apiGroup", Shape::Any),
    Member("Kind", "kind", Shape::Text),
    Member("Name", "name", Shape::Text),
];

const DATA_SOURCE_REFERENCE: &[Member] = &[
    Member("APIGroup", "apiGroup", Shape::Any),
    Member("Kind", "kind", Shape::Text),
    Member("Name", "name", Shape::Text),
    Member("Namespace", "namespace", Shape::Any),
];

const SECRET_REFERENCE: &[Member] =
    &[Member("Name", "name", Shape::Text), Member("Namespace", "namespace", Shape::Text)];

const GCE_DISK: &[Member] = &[
    Member("PDName", "pdName", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("Partition", "partition", Shape::Number),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const AWS_STORE: &[Member] = &[
    Member("VolumeID", "volumeID", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("Partition", "partition", Shape::Number),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const HOST_PATH: &[Member] = &[Member("Path", "path", Shape::Text), Member("Type", "type", Shape::Any)];

const GLUSTERFS: &[Member] = &[
    Member("EndpointsName", "endpoints", Shape::Text),
    Member("Path", "path", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("EndpointsNamespace", "endpointsNamespace", Shape::Any),
];

const NFS: &[Member] = &[
    Member("Server", "server", Shape::Text),
    Member("Path", "path", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const RBD: &[Member] = &[
    Member("CephMonitors", "monitors", Shape::Any),
    Member("RBDImage", "image", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("RBDPool", "pool", Shape::Text),
    Member("RadosUser", "user", Shape::Text),
    Member("Keyring", "keyring", Shape::Text),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const QUOBYTE: &[Member] = &[
    Member("Registry", "registry", Shape::Text),
    Member("Volume", "volume", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("User", "user", Shape::Text),
    Member("Group", "group", Shape::Text),
    Member("Tenant", "tenant", Shape::Text),
];

const ISCSI: &[Member] = &[
    Member("TargetPortal", "targetPortal", Shape::Text),
    Member("IQN", "iqn", Shape::Text),
    Member("Lun", "lun", Shape::Number),
    Member("ISCSIInterface", "iscsiInterface", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("Portals", "portals", Shape::Any),
    Member("DiscoveryCHAPAuth", "chapAuthDiscovery", Shape::Flag),
    Member("SessionCHAPAuth", "chapAuthSession", Shape::Flag),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("InitiatorName", "initiatorName", Shape::Any),
];

const FLEX_VOLUME: &[Member] = &[
    Member("Driver", "driver", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("Options", "options", Shape::Any),
];

const CINDER: &[Member] = &[
    Member("VolumeID", "volumeID", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
];

const CEPHFS: &[Member] = &[
    Member("Monitors", "monitors", Shape::Any),
    Member("Path", "path", Shape::Text),
    Member("User", "user", Shape::Text),
    Member("SecretFile", "secretFile", Shape::Text),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const FIBRE_CHANNEL: &[Member] = &[
    Member("TargetWWNs", "targetWWNs", Shape::Any),
    Member("Lun", "lun", Shape::Any),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("WWIDs", "wwids", Shape::Any),
];

const FLOCKER: &[Member] =
    &[Member("DatasetName", "datasetName", Shape::Text), Member("DatasetUUID", "datasetUUID", Shape::Text)];

const AZURE_FILE: &[Member] = &[
    Member("SecretName", "secretName", Shape::Text),
    Member("ShareName", "shareName", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("SecretNamespace", "secretNamespace", Shape::Any),
];

const VSPHERE_VOLUME: &[Member] = &[
    Member("VolumePath", "volumePath", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("StoragePolicyName", "storagePolicyName", Shape::Text),
    Member("StoragePolicyID", "storagePolicyID", Shape::Text),
];

const AZURE_DISK: &[Member] = &[
    Member("DiskName", "diskName", Shape::Text),
    Member("DataDiskURI", "diskURI", Shape::Text),
    Member("CachingMode", "cachingMode", Shape::Any),
    Member("FSType", "fsType", Shape::Any),
    Member("ReadOnly", "readOnly", Shape::Any),
    Member("Kind", "kind", Shape::Any),
];

const PHOTON_DISK: &[Member] =
    &[Member("PdID", "pdID", Shape::Text), Member("FSType", "fsType", Shape::Text)];

const PORTWORX: &[Member] = &[
    Member("VolumeID", "volumeID", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const SCALE_IO: &[Member] = &[
    Member("Gateway", "gateway", Shape::Text),
    Member("System", "system", Shape::Text),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("SSLEnabled", "sslEnabled", Shape::Flag),
    Member("ProtectionDomain", "protectionDomain", Shape::Text),
    Member("StoragePool", "storagePool", Shape::Text),
    Member("StorageMode", "storageMode", Shape::Text),
    Member("VolumeName", "volumeName", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
];

const LOCAL: &[Member] = &[Member("Path", "path", Shape::Text), Member("FSType", "fsType", Shape::Any)];

const STORAGE_OS: &[Member] = &[
    Member("VolumeName", "volumeName", Shape::Text),
    Member("VolumeNamespace", "volumeNamespace", Shape::Text),
    Member("FSType", "fsType", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("SecretRef", "secretRef", Shape::Optional(&Shape::Struct(internal::OBJECT_REFERENCE))),
];

const CSI: &[Member] = &[
    Member("Driver", "driver", Shape::Text),
    Member("VolumeHandle", "volumeHandle", Shape::Text),
    Member("ReadOnly", "readOnly", Shape::Flag),
    Member("FSType", "fsType", Shape::Text),
    Member("VolumeAttributes", "volumeAttributes", Shape::Any),
    Member(
        "ControllerPublishSecretRef",
        "controllerPublishSecretRef",
        Shape::Optional(&Shape::Struct(SECRET_REFERENCE)),
    ),
    Member("NodeStageSecretRef", "nodeStageSecretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member("NodePublishSecretRef", "nodePublishSecretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
    Member(
        "ControllerExpandSecretRef",
        "controllerExpandSecretRef",
        Shape::Optional(&Shape::Struct(SECRET_REFERENCE)),
    ),
    Member("NodeExpandSecretRef", "nodeExpandSecretRef", Shape::Optional(&Shape::Struct(SECRET_REFERENCE))),
];
