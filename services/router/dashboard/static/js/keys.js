// API keys live in this tab's session storage and nowhere else.

const OPERATOR = "baton.operator_key";
const CHAT = "baton.chat_key";

export const operatorKey = () => sessionStorage.getItem(OPERATOR) ?? "";
export const chatKey = () => sessionStorage.getItem(CHAT) || operatorKey();
export const ownChatKey = () => sessionStorage.getItem(CHAT) ?? "";

export function keep(operator, chat) {
  for (const [name, value] of [[OPERATOR, operator.trim()], [CHAT, chat.trim()]]) {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  }
}

export const forget = () => keep("", "");

export const headersWith = (key) => (key ? { authorization: `Bearer ${key}` } : {});
