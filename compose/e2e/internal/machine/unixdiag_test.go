package machine

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestClientsFindsTheOtherEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	clients, err := Clients(path)
	if err != nil || len(clients) > 0 {
		t.Fatalf("before a client connects: %v, %v", clients, err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	clients, err = Clients(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(clients) != 1 || !slices.Equal(clients[0].PIDs, []int{os.Getpid()}) {
		t.Fatalf("clients %v, want one of this process %d", clients, os.Getpid())
	}
}
