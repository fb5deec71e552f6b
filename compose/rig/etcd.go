package rig

// EtcdAddress is where etcd serves clients, host:port, with TLS. The certificate of the
// administrator's kubeconfig is one that it accepts: both are of the instance's own authority.
func (i *Instance) EtcdAddress() string { return loopback(i.r.Ports.Etcd) }
