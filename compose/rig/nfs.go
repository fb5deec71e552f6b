package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// NFSServer is an NFS server, as Log and Status name it in an instance with GroupNFS. It does not run until StartNFS.
const NFSServer = "nfs-server"

// NFSPort is where clients look for a server.
const NFSPort = 2049

// NFSPath is what the server exports, as clients name it. Below it are folders of NFSFolder.
const NFSPath = "/export"

// nfsText lets root be root, and exports a folder by version 4 of the protocol, which is all on one port. A server
// that starts again waits for its clients of before.
const nfsText = `NFS_CORE_PARAM {
	Bind_addr = %s;
	NFS_Port = %d;
	Protocols = 4;
	Enable_NLM = false;
	Enable_RQUOTA = false;
	Enable_UDP = false;
}
NFSV4 {
	RecoveryBackend = fs;
	RecoveryRoot = %q;
	Only_Numeric_Owners = true;
}
EXPORT {
	Export_Id = 1;
	Path = %q;
	Pseudo = %q;
	Access_Type = RW;
	Squash = No_Root_Squash;
	SecType = sys;
	FSAL { Name = VFS; }
}
`

// StartNFS starts the NFS server on this machine, where the node reaches it at NFSAddress. It runs until StopNFS or
// Down. After a Kill it can be started again.
func (i *Instance) StartNFS(ctx context.Context) error {
	if !i.hasNFS() {
		return fmt.Errorf("start %s: instance %s was made without the group %s", NFSServer, i.r.Name, GroupNFS)
	}
	probe, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if listens(i.nfsAddress())(probe) == nil {
		return fmt.Errorf("start %s: something serves %s already: stop it (systemctl stop nfs-ganesha)", NFSServer,
			i.nfsAddress())
	}
	for _, dir := range []string{i.NFSFolder(), filepath.Join(i.nfsDir(), "recovery")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start %s: %w", NFSServer, err)
		}
	}
	text := fmt.Sprintf(nfsText, i.NFSAddress(), NFSPort, filepath.Join(i.nfsDir(), "recovery"), i.NFSFolder(), NFSPath)
	if err := os.WriteFile(i.nfsConfig(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("start %s: %w", NFSServer, err)
	}
	return i.start(ctx, NFSServer)
}

// StopNFS stops the server.
func (i *Instance) StopNFS(ctx context.Context) error { return i.stop(ctx, NFSServer) }

// SignalNFS sends the server a signal: one that is stopped by SIGSTOP hangs.
func (i *Instance) SignalNFS(sig unix.Signal) error { return i.process(NFSServer).Signal(sig) }

// NFSFolder is the folder that the server exports.
func (i *Instance) NFSFolder() string { return filepath.Join(i.nfsDir(), "export") }

// NFSAddress is the server's address, as the node knows it.
func (i *Instance) NFSAddress() string { return i.r.Network.Server.Addr().String() }

func (i *Instance) hasNFS() bool { return i.r.Binaries[NFSServer] != "" }

func (i *Instance) nfsDir() string { return filepath.Join(i.r.Dir, "nfs") }

func (i *Instance) nfsConfig() string { return filepath.Join(i.nfsDir(), "ganesha.conf") }

func (i *Instance) nfsAddress() string {
	return net.JoinHostPort(i.NFSAddress(), strconv.Itoa(NFSPort))
}

func (i *Instance) nfsArgs() []string {
	return []string{
		"-F", "-f", i.nfsConfig(), "-L", "STDERR", "-p", filepath.Join(i.nfsDir(), "pid"), "-N", "NIV_EVENT",
	}
}
