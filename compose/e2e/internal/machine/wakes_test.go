package machine

import (
	"net"
	"os"
	"testing"
	"time"
)

func TestReadUse(t *testing.T) {
	before, err := ReadUse(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		time.Sleep(time.Millisecond)
	}
	after, err := ReadUse(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after.Sub(before); used.CPU <= 0 || used.Waits < 20 {
		t.Errorf("20 pauses took %+v", used)
	}
}

func TestConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	if _, err := client.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	found, err := Connections([]int{os.Getpid()}, port)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 {
		t.Fatalf("there are %d connections to port %d, want 1", len(found), port)
	}
	for _, traffic := range found {
		if traffic.Sent != 1000 || traffic.Received != 0 {
			t.Errorf("the connection has sent %d bytes and received %d, want 1000 and 0", traffic.Sent, traffic.Received)
		}
	}
}
