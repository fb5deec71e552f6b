package machine

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Traffic is how many bytes a connection has carried, without the headers of TCP.
type Traffic struct{ Sent, Received int64 }

// Connections are the TCP connections that the processes have open to a port of any host, each with the inode of its
// socket and what it has carried, by the kernel's count.
func Connections(pids []int, port int) (map[uint32]Traffic, error) {
	holders, err := SocketHolders()
	if err != nil {
		return nil, err
	}
	found := map[uint32]Traffic{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagTCPInfo(family)
		if err != nil {
			return nil, fmt.Errorf("ask sock_diag for connections: %w", err)
		}
		for _, s := range sockets {
			socket := s.InetDiagMsg
			if s.TCPInfo == nil || int(socket.ID.DestinationPort) != port {
				continue
			}
			ours := slices.ContainsFunc(holders[socket.INode], func(pid int) bool { return slices.Contains(pids, pid) })
			if ours {
				found[socket.INode] = Traffic{int64(s.TCPInfo.Bytes_sent), int64(s.TCPInfo.Bytes_received)}
			}
		}
	}
	return found, nil
}
