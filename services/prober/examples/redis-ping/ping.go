package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	probepluginv1 "github.com/microlet/microlet/proto/microlet/probeplugin/v1"
)

// maxLine bounds the server's answer.
const maxLine = 512

// ping is healthy when the server answers PONG, or asks for a password: a server that does that serves.
// One that loads its data yet, or has lost its master, says so in an error and is not.
func ping(ctx context.Context, r *probepluginv1.ProbeRequest) (healthy bool, message string, err error) {
	if r.GetPort() == 0 {
		return false, "", fmt.Errorf("the probe names no port: give it a tcpSocket handler with the port of Redis")
	}
	address := net.JoinHostPort(r.GetHost(), strconv.Itoa(int(r.GetPort())))
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err.Error(), nil
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return false, "", err
		}
	}
	if _, err := io.WriteString(conn, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return false, err.Error(), nil
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxLine)).ReadString('\n')
	if err != nil {
		return false, fmt.Sprintf("%s: no answer to PING: %v", address, err), nil
	}
	line = strings.TrimSpace(line)
	if line == "+PONG" || strings.HasPrefix(line, "-NOAUTH") {
		return true, line, nil
	}
	return false, fmt.Sprintf("%s answers %q", address, line), nil
}
