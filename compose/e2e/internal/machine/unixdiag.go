package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kernel's numbers of include/uapi/linux/{sock_diag,unix_diag}.h.
const (
	sockDiagByFamily = 20

	showName = 1 << 0 // UDIAG_SHOW_NAME
	showPeer = 1 << 2 // UDIAG_SHOW_PEER

	attrName = 0 // UNIX_DIAG_NAME
	attrPeer = 2 // UNIX_DIAG_PEER
)

// Client is one end of a connection to a unix socket.
type Client struct {
	// Inode of the client's end.
	Inode uint32
	// PIDs of the processes that have it open; none when it has just been closed.
	PIDs []int
}

// diagRequest is struct unix_diag_req.
type diagRequest struct{ show uint32 }

func (r diagRequest) Len() int { return 24 }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // sockets of every state
	binary.NativeEndian.PutUint32(b[12:], r.show)
	for i := 16; i < 24; i++ {
		b[i] = 0xff // no cookie
	}
	return b
}

// unixSocket is one answer of the kernel.
type unixSocket struct {
	inode, peer uint32
	name        string
}

// Clients returns who is connected to the unix socket at the path. It asks sock_diag, because a
// client's end has no name in /proc/net/unix: the ends that a server has accepted have the name of
// the socket, and show the inode of their peer.
func Clients(path string) ([]Client, error) {
	sockets, err := unixSockets()
	if err != nil {
		return nil, err
	}
	holders, err := SocketHolders()
	if err != nil {
		return nil, err
	}
	var clients []Client
	for _, s := range sockets {
		if s.name == path && s.peer != 0 {
			clients = append(clients, Client{Inode: s.peer, PIDs: holders[s.peer]})
		}
	}
	return clients, nil
}

func unixSockets() ([]unixSocket, error) {
	request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
	request.AddData(diagRequest{show: showName | showPeer})
	answers, err := request.Execute(unix.NETLINK_SOCK_DIAG, sockDiagByFamily)
	if err != nil {
		return nil, fmt.Errorf("ask sock_diag for unix sockets: %w", err)
	}
	var sockets []unixSocket
	for _, a := range answers {
		s, err := parseUnixSocket(a)
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

// parseUnixSocket reads struct unix_diag_msg and its attributes.
func parseUnixSocket(b []byte) (unixSocket, error) {
	const head = 16
	if len(b) < head {
		return unixSocket{}, errors.New("sock_diag's answer is too short")
	}
	s := unixSocket{inode: binary.NativeEndian.Uint32(b[4:])}
	attributes, err := nl.ParseRouteAttr(b[head:])
	if err != nil {
		return s, fmt.Errorf("parse sock_diag's answer: %w", err)
	}
	for _, a := range attributes {
		switch {
		case a.Attr.Type == attrName:
			s.name = strings.TrimRight(string(a.Value), "\x00")
		case a.Attr.Type == attrPeer && len(a.Value) >= 4:
			s.peer = binary.NativeEndian.Uint32(a.Value)
		}
	}
	return s, nil
}
